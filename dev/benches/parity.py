"""Largest difference between a take with everything kept and the stock AR sampler's, on tiny random
models. 0 is bit-equal.
"""

import itertools

import _common as common

args = common.start(__doc__)
from support import tiny

SIZES = [(6, 10)] if args.quick else [(6, 10), (8, 4), (16, 16)]
rows = []
for causal, chunk_frames, size in itertools.product([True, False], [1, 3], SIZES):
    noise = tiny.noise_of(7, *size)
    difference = tiny.stock(tiny.tiny_model(), noise, chunk_frames) - tiny.ours(
        tiny.tiny_model(causal), noise, chunk_frames
    )
    rows.append(
        {
            "case": f"{'causal' if causal else 'plain'} class, chunks of {chunk_frames}, 7 frames "
            f"of {size[0]}x{size[1]}",
            "max_abs_diff": float(difference.abs().max()),
        }
    )
image, model = tiny.noise_of(1, seed=8), tiny.tiny_model()
model.model_options["transformer_options"]["ar_config"] = {"initial_latent": image}
difference = tiny.stock(model, tiny.noise_of(5), 2) - tiny.ours(
    tiny.tiny_model(), tiny.noise_of(5), 2, prefix=image
)
rows.append({"case": "start image, chunks of 2", "max_abs_diff": float(difference.abs().max())})
common.report("parity", rows)
