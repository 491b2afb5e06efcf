"""Where a model computes: what was asked for, else the accelerator if there is one."""

import torch

from draftsmith.core.protocols import EngineConfig


def device_of(config: EngineConfig) -> torch.device:
    if config.device != "auto":
        return torch.device(config.device)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")
