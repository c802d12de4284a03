"""Host tests run as ComfyUI runs its nodes: without gradients."""

import pytest
import torch


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield
