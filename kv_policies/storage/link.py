"""Copies from main memory to a device."""

from __future__ import annotations

import weakref
from contextlib import suppress

import torch
from torch import Tensor


class Link:
    """Copies at once: for a device that has nothing to run beside them."""

    def rows(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Main memory to copy from."""
        return torch.empty(shape, dtype=dtype)

    def fetch(self, source: Tensor, target: Tensor):
        """Begin to copy, once all work that was given to the device before is done."""
        target.copy_(source)

    def arrive(self):
        """Work that is given to the device from now on finds what was fetched."""

    def wait(self):
        """Block until no source is read any longer."""


class CUDALink(Link):
    """Copies from pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def rows(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Pinned memory. Torch's own comes in powers of two and is not given back, so memory of the
        right size is pinned here. Where that fails, copies no longer run beside the work.
        """
        rows = torch.empty(shape, dtype=dtype)
        if (
            rows.nbytes
            and torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), rows.nbytes, 1) == 0
        ):
            weakref.finalize(rows, self._unpin, self.stream, rows.data_ptr()).atexit = False
        else:
            with suppress(RuntimeError):  # the next launch reports the failure once more
                torch.zeros(1, device=self.device).add_(1)
        return rows

    @staticmethod
    def _unpin(stream: torch.cuda.Stream, address: int):
        stream.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)

    def fetch(self, source: Tensor, target: Tensor):
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
        target.record_stream(self.stream)  # its memory is not given to others while it is written

    def arrive(self):
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def wait(self):
        self.stream.synchronize()


class MetaLink(Link):
    """For rows that have a size and no content."""

    def rows(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")


def link_to(device: torch.device) -> Link:
    if device.type == "cuda":
        return CUDALink(device)
    return MetaLink() if device.type == "meta" else Link()
