"""What the videos of a prompt are called: VBench finds them by `<prompt>-<index>.mp4`."""

import hashlib
import re
from pathlib import Path

# No file system of Windows, and for / none at all, has these in a name.
REFUSED = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
# A name has 255 bytes at most. VBench's longest prompt has 210; the rest is for its -<index>, and
# for what VBench-Long adds to a clip's name (-Scene-<number>_<number>.mp4).
LONGEST = 210


def stem(prompt: str) -> str:
    """Of one of VBench's own prompts: the prompt, to the letter. ValueError, in a sentence, where
    no file can be called so.
    """
    if REFUSED.search(prompt) or len(prompt.encode()) > LONGEST:
        raise ValueError(
            f"No file can be called after '{prompt[:80]}', and VBench would look for it: it has "
            "signs that file systems refuse, or is too long. Give the list as text, one prompt on "
            "each line; VBench then gets a list of names."
        )
    return prompt


def own_stem(prompt: str) -> str:
    """Of any prompt: itself where a file can be called so; else what fits of it, and eight signs
    that tell it from others. VBench asks nothing of such names, and --prompt_file says the prompt.
    """
    clean = REFUSED.sub("-", prompt).replace("_", "-")  # VBench-Long cuts clips' names at _
    if clean == prompt and len(prompt.encode()) <= LONGEST:
        return prompt
    mark = f" ({hashlib.sha256(prompt.encode()).hexdigest()[:8]})"
    room = LONGEST - len(mark)
    if len(clean.encode()) > room:
        clean = clean.encode()[:room].decode(errors="ignore").rpartition(" ")[0] or clean[:40]
    return (clean.rstrip(" .,-") + mark).strip()


def tells_case(folder: Path) -> bool:
    """Whether the file system of a folder takes `a` and `A` for two names."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / "tells case.probe"
    probe.touch()
    try:
        return not (folder / "TELLS CASE.PROBE").exists()
    finally:
        probe.unlink()
