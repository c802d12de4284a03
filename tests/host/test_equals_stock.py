"""With everything kept, a take is bit-equal to the stock AR sampler's at the same seed."""
import pytest
import torch

from . import tiny


@pytest.mark.parametrize("chunk_frames", [1, 3])
@pytest.mark.parametrize("size", [(6, 10), (8, 4)])
def test_full_kv_equals_the_stock_sampler(chunk_frames, size):
    noise = tiny.noise_of(7, *size)          # 7 frames: the last chunk of 3 is short
    assert torch.equal(tiny.stock(tiny.tiny_model(), noise, chunk_frames), tiny.ours(tiny.tiny_model(), noise, chunk_frames))
