"""Does a take drift, and do its chunks fit together? Two kinds of takes of the demo world, the same
prompts and seeds for every policy.

hold   the camera stands still, and every frame should stay what the first one was. drift =
       MSE(frame, first frame) / MSE(first frame of another
       take under the same prompt, first frame), over decoded key frames of the last tenth: 0 is a
       still picture, 1 another town. growth: from the second tenth on.
pan    the camera walks, and what stays in view should stay what it was. seam = MSE(first frame of a
       chunk, the frame before) where both show the
       same place, over the MSE against another take's there.

Each ci95 is half the width of the bootstrap interval over takes; 4 steps. By default the schedules
run, with 21 latent frames in reach (27 that Rolling Forcing needs at 8 steps, Krea's 6);
`in_flight` and `anchors` are FlashForward without anchors and without history.
"""

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA, "--bf16-unet"],
    takes={"type": int, "default": 16},
    frames={"type": int, "default": 162},
    steps={"type": int, "default": 4},
    policy={"nargs": "*", "default": None, "help": "names of policies.py"},
    add={"nargs": "*", "default": [], "help": "Python files with policies, see policies.py"},
)
import policies
import torch
from drift_takes import MEASURES, Job, ratios, run_pair
from support.intervals import interval

policies.add(args.add)
NAMES = ["clean_pass", *policies.SCHEDULING, "in_flight", "anchors"]


def main():
    rows = []
    count, frames = (2, 40) if args.quick else (args.takes, args.frames)
    if count % 2:
        raise SystemExit(
            f"--takes is {count}; takes are compared in pairs, so give an even number."
        )
    for name in policies.chosen(args.policy, NAMES):
        row = {"policy": name}
        jobs = [Job(name, pair, frames, args.steps) for pair in range(count // 2)]
        takes = [take for job in jobs for take in run_pair(job)]
        for measure in MEASURES:

            def ratio(pick, takes=takes, measure=measure):
                return ratios(takes, measure, pick)

            row |= {
                measure: float(ratio(torch.arange(count))),
                f"{measure}_ci95": interval(ratio, count),
            }
        rows.append(row | {"takes": count, "frames": frames})
        print(
            f"{name}: "
            + ", ".join(
                f"{what} {row[what]:.4f} +- {row[what + '_ci95']:.4f}" for what in MEASURES
            ),
            flush=True,
        )
    common.report("drift", rows, steps=args.steps)


main()
