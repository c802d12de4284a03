"""Takes that are killed (kill -9) at random moments, and resumed, until they are done; then each is
compared to the take of one run.

`lost_chunks_max`: most finished chunks that a kill has cost; `unplayable`: kills after which the
video did not show every finished chunk, but for a frame that waits for its pair; `mismatches`:
takes whose latents or video differ from those of one run in any byte.
"""

import os
import random
import select
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import _common as common

args = common.start(__doc__, rounds={"type": int, "default": 240, "help": "kills"})
FRAMES, CHUNK, EVERY, STEPS = 48, 3, 4, 2


def take(models, prefix: str, resume: bool, tell=lambda lines: None):
    """One run of a take, streamed; `tell` hears where it goes on and each finished chunk. Returns
    its latents.
    """
    import torch
    from keepsake.host.files.growing_files import GrowingFiles, StreamToFile
    from keepsake.host.take.take import sample_take
    from keepsake.kv_policies import KVPolicy, SinkWindow
    from support import tiny

    (model, vae), add, made = models, GrowingFiles.add, []

    def lines(self, latents):
        if not made:
            tell(f"from {self.saved // CHUNK}\n")
        made.append(1)
        add(self, latents)
        tell("chunk\n")

    GrowingFiles.add = lines
    latents, _ = sample_take(
        model,
        tiny.prompt(1),
        None,
        1.0,
        {"samples": torch.zeros(1, 16, FRAMES, 4, 4)},
        seed=1,
        steps=STEPS,
        chunk_frames=CHUNK,
        policy=KVPolicy(SinkWindow(3, 12)),
        stream=StreamToFile(vae, prefix, 16.0, EVERY, resume),
        callback=lambda *a: None,
    )
    return latents["samples"]


def killed(models, prefix: str, seconds: float, result: Path) -> tuple[list[str], bool]:
    """Run a take in a process of its own and kill it after so many seconds: what it told, and
    whether it was done before.
    """
    import torch

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.save(
                take(models, prefix, True, lambda lines: os.write(writer, lines.encode())), result
            )
            os._exit(0)
        except BaseException as error:
            os.write(writer, f"error {error!r}\n".encode())
            os._exit(1)
    os.close(writer)
    deadline, received = time.monotonic() + seconds, b""
    while (left := deadline - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        part = os.read(reader, 4096)
        if not part:
            break
        received += part
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while part := os.read(reader, 4096):
        received += part
    os.close(reader)
    return received.decode().split("\n")[:-1], os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def pictures_in(video: Path) -> int:
    """A piece that the kill has torn may end it."""
    import av

    shown = 0
    with suppress(av.error.InvalidDataError), av.open(str(video)) as opened:
        for _ in opened.decode(video=0):
            shown += 1
    return shown


def main():
    import comfy.sd
    import folder_paths
    import torch
    from comfy.ldm.wan.vae import WanVAE
    from keepsake.host.files.growing_files import StreamToFile
    from support import tiny

    torch.set_num_threads(1)  # processes are forked
    out = Path(tempfile.mkdtemp())
    folder_paths.set_output_directory(str(out))
    module = WanVAE(
        dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        attn_scales=[],
        temperal_downsample=[False, True, True],
    )
    models = (
        tiny.prepared(tiny.tiny_model(layers=2)),
        comfy.sd.VAE(
            sd={name: torch.randn(p.shape) * 0.1 for name, p in module.named_parameters()}
        ),
    )
    began = time.monotonic()
    straight = take(models, "straight", False)
    seconds, video = time.monotonic() - began, (out / "straight_00001_.mp4").read_bytes()
    draw, rounds, lost, unplayable, mismatches, takes, errors = random.Random(1), 0, 0, 0, 0, 0, []
    made, prefix = 0, "take_0"
    while rounds < (12 if args.quick else args.rounds):
        lines, done = killed(models, prefix, draw.uniform(0.05, 0.7) * seconds, out / "result.pt")
        rounds += not done
        files = sorted(out.glob(f"{prefix}_*.mp4"))
        if any(
            "is finished: all" in line for line in lines
        ):  # killed between its last save and its end
            memory = StreamToFile(models[1], prefix, 16.0, EVERY, True).open(models[0]).memory
            torch.save(models[0].model.process_latent_out(memory.latents), out / "result.pt")
            done, rounds = True, rounds - 1
        else:
            errors += [line for line in lines if line.startswith("error")]
        starts = [int(line.split()[1]) for line in lines if line.startswith("from")]
        if starts:
            lost, made = max(lost, made - starts[0]), starts[0] + lines.count("chunk")
            unplayable += (
                pictures_in(files[-1]) < 1 + 4 * ((made * CHUNK - 1) // 2 * 2) if made else 0
            )
        if done:
            again = torch.load(out / "result.pt", weights_only=True)
            mismatches += not torch.equal(again, straight) or files[-1].read_bytes() != video
            takes, made, prefix = takes + 1, 0, f"take_{takes + 1}"
    common.report(
        "endurance",
        [
            {
                "rounds": rounds,
                "lost_chunks_max": lost,
                "unplayable": unplayable,
                "mismatches": mismatches,
                "takes": takes,
                "errors": len(errors),
            }
        ],
        errors=errors[:5],
    )


main()
