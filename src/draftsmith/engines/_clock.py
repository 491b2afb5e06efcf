"""The time at which a device has done what it was asked to do."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds; waits for a device that works on its own."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
