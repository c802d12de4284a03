"""No room for a tensor, wherever: nothing of the take stays, and a smaller one and the same one
come out as ever.
"""

import random

import pytest
import torch
from keepsake.kv_policies import KVPolicy, KVStorage, SinkWindow, Storage
from torch.utils._python_dispatch import TorchDispatchMode

from .test_resume import make, model, saved  # noqa: F401  model: a fixture
from .test_survives import live_bytes


class Room(TorchDispatchMode):
    """Counts what torch does; the operation of the number `last` finds no room. Softmax does not
    count: the host's attention goes on without room for it, in a slower way.
    """

    def __init__(self, last=0):
        super().__init__()
        self.last = last
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "softmax" in str(function):
            return function(*args, **(kwargs or {}))
        self.count += 1
        if self.count == self.last:
            raise torch.OutOfMemoryError("no room")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "storage",
    [
        Storage(),
        *(KVStorage(dtype, 1, 1) for dtype in ("fp8", "int8", "int4")),
        KVStorage("model", device="cpu"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("goes_on", [False, True], ids=["from noise", "from a memory"])
def test_no_room_wherever(model, tmp_path, storage, goes_on):  # noqa: F811
    policy, draw = KVPolicy(SinkWindow(1, 7), storage=storage), random.Random(repr(storage))
    memory = saved(model, tmp_path / "m.safetensors", policy=policy)[1] if goes_on else None
    with Room() as room:
        whole, _ = make(model, policy, memory=memory, keep=[])
    smaller, _ = make(model, policy, frames=4)
    before = live_bytes()
    last = draw.randrange(1, room.count)
    with pytest.raises(torch.OutOfMemoryError), Room(last):
        make(model, policy, memory=memory, keep=[])
    assert live_bytes() <= before, last
    assert torch.equal(make(model, policy, frames=4)[0]["samples"], smaller["samples"])
    assert torch.equal(make(model, policy, memory=memory)[0]["samples"], whole["samples"])
