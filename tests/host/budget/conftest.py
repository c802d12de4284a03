"""A device of any size."""

import comfy.model_management
import pytest
from keepsake.host.budget import budget as budget_module


@pytest.fixture
def device_of(monkeypatch):
    """Give the device so many bytes, all of them free but those in use."""

    def give(nbytes, in_use=0):
        monkeypatch.setattr(budget_module, "MARGIN", 0)
        for function, value in (("get_total_memory", nbytes), ("get_free_memory", nbytes - in_use)):
            monkeypatch.setattr(
                comfy.model_management,
                function,
                lambda device=None, with_torch=False, value=value: (
                    (value, value) if with_torch else value
                ),
            )

    return give
