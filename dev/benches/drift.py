"""Does a take drift, and do its chunks fit together? Two kinds of takes of the demo world, the same
prompts and seeds for every policy.

hold   the camera stands still, and every frame should stay what the first one was. drift =
       MSE(frame, first frame) / MSE(first frame of another
       take under the same prompt, first frame), over decoded key frames of the last tenth: 0 is a
       still picture, 1 another town. growth: from the second tenth on.
pan    the camera walks, and what stays in view should stay what it was. seam = MSE(first frame of a
       chunk, the frame before) where both show the
       same place, over the MSE against another take's there.

Each ci95 is half the width of the bootstrap interval over takes. All policies read 21 latent frames
at most; 4 steps. `in_flight` and `anchors` are FlashForward without anchors and without history.
"""

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA, "--bf16-unet"],
    takes={"type": int, "default": 16},
    frames={"type": int, "default": 162},
    steps={"type": int, "default": 4},
    policy={"nargs": "*", "default": None, "help": "names of the SCHEDULES table"},
)
import torch
from episodes import PROMPTS, SCHEDULES, interval
from keepsake.demo import world
from keepsake.demo.load import load_demo_world
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import KVPolicy


def take(
    parts, policy: KVPolicy, path: str, number: int, frames: int
) -> tuple[torch.Tensor, list[int]]:
    """Decoded key frames `[frames, 64, 128, 3]`; the first frame of each chunk but the first."""
    model, clip, vae = parts
    latent = {"samples": torch.zeros(1, 16, frames, world.ROWS, world.COLUMNS)}
    seed = 1000 + 32 * number + number // 2  # two takes share prompt and place, and differ in noise
    control = world.camera_control(latent["samples"].shape, path, 1, number // 2)
    positive = clip.encode_from_tokens_scheduled(
        clip.tokenize(world.prompt(*PROMPTS[number // 2 % len(PROMPTS)]))
    )
    sampled, stats = sample_take(
        model,
        positive,
        None,
        1.0,
        latent,
        seed=seed,
        steps=args.steps,
        policy=policy,
        control=control,
    )
    return vae.decode(sampled["samples"][0].movedim(1, 0)[:, :, None])[:, 0], [
        row.start_frame for row in stats.chunks[1:]
    ]


def errors(parts, policy: KVPolicy, takes: int, frames: int) -> dict[str, torch.Tensor]:
    """By measure, each take's error and that against the other take of its pair, `[takes, 2]`."""

    def square(a, b):
        return (a - b).square().mean((1, 2, 3))

    hold, walk = (
        [take(parts, policy, path, number, frames) for number in range(takes)]
        for path in ("hold", "pan right")
    )
    tenth, step, measured = (
        frames // 10,
        world.STEP * world.CELL,
        {"drift": [], "growth": [], "seam": []},
    )
    for number in range(takes):
        still, other = hold[number][0], square(hold[number ^ 1][0][:1], hold[number][0][:1]).mean()
        error = square(still, still[:1])
        measured["drift"].append((error[-tenth:].mean(), other))
        measured["growth"].append((error[-tenth:].mean() - error[tenth : 2 * tenth].mean(), other))
        (moving, starts), stranger = walk[number], walk[number ^ 1][0]
        before = moving[[start - 1 for start in starts], :, step:]
        measured["seam"].append(
            (
                square(moving[starts, :, :-step], before).mean(),
                square(stranger[starts, :, :-step], before).mean(),
            )
        )
    return {measure: torch.tensor(pairs) for measure, pairs in measured.items()}


def main():
    parts, rows = load_demo_world(), []
    takes, frames = (2, 40) if args.quick else (args.takes, args.frames)
    if takes % 2:
        raise SystemExit(
            f"--takes is {takes}; takes are compared in pairs, so give an even number."
        )
    for name in args.policy or SCHEDULES:
        row = {"policy": name}
        for measure, pairs in errors(parts, SCHEDULES[name], takes, frames).items():

            def ratio(pick, pairs=pairs):
                return pairs[pick, 0].mean(-1) / pairs[pick, 1].mean(-1)

            row |= {
                measure: float(ratio(torch.arange(takes))),
                f"{measure}_ci95": interval(ratio, takes),
            }
        rows.append(row | {"takes": takes, "frames": frames})
        print(
            f"{name}: "
            + ", ".join(
                f"{what} {row[what]:.4f} +- {row[what + '_ci95']:.4f}"
                for what in ("drift", "growth", "seam")
            ),
            flush=True,
        )
    common.report("drift", rows, steps=args.steps)


main()
