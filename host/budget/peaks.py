"""The memory that a take was measured to use."""

import psutil
import torch


class Peaks:
    """Most memory in use since the take began, in bytes: torch's own figures on CUDA, and what the
    process was seen to hold in main memory.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.process = psutil.Process()
        self.resident = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.look()

    def look(self):
        """Main memory has no peak of a take's own, so it is looked at after every chunk."""
        self.resident = max(self.resident, self.process.memory_info().rss)

    def by_place(self) -> dict[str, int]:
        peaks = {"resident in RAM": self.resident}
        if self.device.type == "cuda":
            peaks["allocated on the device"] = torch.cuda.max_memory_allocated(self.device)
            peaks["reserved on the device"] = torch.cuda.max_memory_reserved(self.device)
        return peaks
