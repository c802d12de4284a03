"""An arena's bench in the environment of your own ComfyUI: `python -m dev.arenas cmbench --help`,
in this folder, with COMFYUI_PATH set.
"""

import runpy
import sys
from pathlib import Path

BENCHES = Path(__file__).parents[1] / "benches"


def main():
    names = sorted(path.stem for path in BENCHES.glob("*.py") if "from arenas" in path.read_text())
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in names:
        raise SystemExit(f"python -m dev.arenas got '{name}'. Name one of: {', '.join(names)}.")
    sys.path.insert(0, str(BENCHES))
    sys.argv[:2] = [f"python -m dev.arenas {name}"]
    runpy.run_path(str(BENCHES / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
