"""Accelerators by name: what a plan must know of them. Dense bfloat16 teraflops and memory, as their makers say."""

from dataclasses import dataclass

from draftsmith.core.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """Teraflops in bfloat16, and gigabytes (10^9 bytes)."""

    tflops: float
    memory_gb: float


DEVICES = {
    "a100-40gb": Device(312, 40),
    "a100-80gb": Device(312, 80),
    "b200": Device(2250, 180),
    "h100": Device(989, 80),
    "h200": Device(989, 141),
    "l40s": Device(362, 48),
    "mi300x": Device(1307, 192),
    "rtx4090": Device(165, 24),
}


def device_named(name: str) -> Device:
    """One of `DEVICES`."""
    if name not in DEVICES:
        raise ConfigError(f"nobody said how fast a {name!r} is", f"use one of {', '.join(DEVICES)}")
    return DEVICES[name]
