"""What a process takes of memory, as Linux counts it."""

from pathlib import Path


def resident_bytes() -> int:
    """Now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most since the process began. What getrusage says of it begins with the peak of the parent."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(kilobytes)
