"""A ComfyUI with this pack in it, web page included, until Ctrl-C. It saves to `.dev/serve/output`
and looks for models in `.dev/serve/models`.
"""

import argparse
import sys

import frontend
import setup
from server import Server, ServerError


def main():
    parser = argparse.ArgumentParser(
        prog="dev/serve",
        description=__doc__,
        epilog="Other options go on to ComfyUI, such as --extra-model-paths-config FILE for "
        "models elsewhere.",
    )
    parser.add_argument("--port", type=int, default=8188)
    parser.add_argument(
        "--cpu", action="store_true", default=None, help="leave a CUDA device alone"
    )
    arguments, options = parser.parse_known_args()
    try:
        host = setup.needed_host()
        with Server(
            host,
            base=setup.STATE / "serve",
            port=arguments.port,
            cpu=arguments.cpu,
            # ComfyUI empties its folder of previews when it starts: a second server would empty the
            # first one's.
            options=[
                "--preview-method",
                "auto",
                "--temp-directory",
                setup.STATE / f"serve/port-{arguments.port}",
                *frontend.options(host),
                *options,
            ],
            echo=True,
        ) as server:
            print(
                "(The error about comfyui-workflow-templates is expected: ComfyUI's own gallery "
                "is left out of this environment.)"
            )
            print(f"ComfyUI {server.version} is at {server.url} (Ctrl-C stops it)", flush=True)
            server.process.wait()
    except KeyboardInterrupt:
        pass
    except (ServerError, setup.SetupError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
