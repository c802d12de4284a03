"""Host tests run as ComfyUI runs its nodes: without gradients."""

import pytest
import torch


@pytest.fixture(scope="module")
def model():
    """A tiny MODEL of two layers, as the host's loader gives it; made once for each file."""
    from support import tiny  # imports ComfyUI

    return tiny.tiny_model(layers=2)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield
