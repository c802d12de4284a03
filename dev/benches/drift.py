"""Does a take drift? The demo world's camera stands still, and every frame should stay what the first one was.

drift = MSE(frame, first frame) / MSE(first frame of another take under the same prompt, first frame), over decoded key frames: 0 is a still
picture, 1 another town. It is given for the last tenth of the take, and its growth from the second tenth on; jump is the same error from one frame
to the next where a chunk begins, over the whole take; each ci95 is half the width of the bootstrap interval over takes. All policies read 21 latent frames at most; 4 steps. `in_flight` and `anchors` are FlashForward without anchors and
without history.
"""
import _common as common

args = common.start(__doc__, host_flags=lambda args: [common.SDPA, "--bf16-unet"], takes={"type": int, "default": 12},
                    frames={"type": int, "default": 162}, steps={"type": int, "default": 4},
                    policy={"nargs": "*", "default": None, "help": "names of the SCHEDULES table"})
import torch  # noqa: E402
from episodes import PROMPTS, RESAMPLES, SCHEDULES  # noqa: E402
from keepsake.demo import world  # noqa: E402
from keepsake.demo.load import load_demo_world  # noqa: E402
from keepsake.host.take import sample_take  # noqa: E402
from keepsake.kv_policies import KVPolicy  # noqa: E402


def take(parts, policy: KVPolicy, prompt: str, frames: int, seed: int) -> tuple[torch.Tensor, list[int]]:
    """Decoded key frames `[frames, 64, 128, 3]`, and the first frame of each chunk but the first."""
    model, clip, vae = parts
    latent = {"samples": torch.zeros(1, 16, frames, world.ROWS, world.COLUMNS)}
    control = world.camera_control(latent["samples"].shape, "hold", 1, seed % 32)
    positive = clip.encode_from_tokens_scheduled(clip.tokenize(prompt))
    made, stats = sample_take(model, positive, None, 1.0, latent, seed=seed, steps=args.steps, policy=policy, control=control)
    return vae.decode(made["samples"][0].movedim(1, 0)[:, :, None])[:, 0], [row.start_frame for row in stats.chunks[1:]]


def main():
    parts, rows = load_demo_world(), []
    takes, frames = (2, 40) if args.quick else (args.takes, args.frames)
    if takes % 2:
        raise SystemExit(f"--takes is {takes}; takes are compared in pairs, so give an even number.")
    prompts, tenth = [world.prompt(*pair) for pair in PROMPTS], frames // 10
    pick = torch.randint(takes, (RESAMPLES, takes), generator=torch.Generator().manual_seed(0))
    for name in args.policy or SCHEDULES:
        made, starts = zip(*(take(parts, SCHEDULES[name], prompts[number // 2 % len(prompts)], frames, 1000 + 32 * number + number // 2)
                             for number in range(takes)))
        other = torch.stack([(made[number ^ 1][0] - made[number][0]).square().mean() for number in range(takes)])
        error = torch.stack([(one - one[:1]).square().mean((1, 2, 3)) for one in made])
        late, early = error[:, -tenth:].mean(1), error[:, tenth:2 * tenth].mean(1)
        jump = torch.stack([(one[first] - one[[frame - 1 for frame in first]]).square().mean() for one, first in zip(made, starts)])

        row = {"policy": name}
        for what, of in (("drift", late), ("growth", late - early), ("jump", jump)):
            low, high = torch.quantile(of[pick].mean(-1) / other[pick].mean(-1), torch.tensor([.025, .975])).tolist()
            row |= {what: float(of.mean() / other.mean()), f"{what}_ci95": (high - low) / 2}
        rows.append(row | {"takes": takes, "frames": frames})
        print(f"{name}: " + ", ".join(f"{what} {row[what]:.4f} +- {row[what + '_ci95']:.4f}" for what in ("drift", "growth", "jump")), flush=True)
    common.report("drift", rows, steps=args.steps)


main()
