"""Largest difference between a take with everything kept and the stock AR sampler's, on tiny random
models. 0 is bit-equal.
"""

import itertools

import _common as common

args = common.start(__doc__)
from support import tiny

SIZES = [(6, 10)] if args.quick else [(6, 10), (8, 4), (16, 16)]


def row(case: str, stock, ours) -> dict:
    return {"case": case, "max_abs_diff": float((stock - ours).abs().max())}


def of_noise(is_causal: bool, chunk_frames: int, size: tuple[int, int]) -> dict:
    noise = tiny.noise_of(7, *size)
    stock = tiny.stock(tiny.tiny_model(), noise, chunk_frames)
    ours = tiny.ours(tiny.tiny_model(is_causal), noise, chunk_frames)
    kind = "causal" if is_causal else "plain"
    case = f"{kind} class, chunks of {chunk_frames}, 7 frames of {size[0]}x{size[1]}"
    return row(case, stock, ours)


def of_image() -> dict:
    image = tiny.noise_of(1, seed=8)
    model = tiny.tiny_model()
    model.model_options["transformer_options"]["ar_config"] = {"initial_latent": image}
    stock = tiny.stock(model, tiny.noise_of(5), 2)
    ours = tiny.ours(tiny.tiny_model(), tiny.noise_of(5), 2, prefix=image)
    return row("start image, chunks of 2", stock, ours)


cases = itertools.product([True, False], [1, 3], SIZES)
common.report("parity", [*itertools.starmap(of_noise, cases), of_image()])
