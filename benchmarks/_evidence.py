"""What all benchmarks share: the lab's models and data, the result file, and the exit code that says whether a goal holds."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from draftsmith import api
from draftsmith.core.provenance import collect, has_bf16_units
from draftsmith.core.store import read_json, write_json
from draftsmith.core.trace import TraceReader, TraceRow

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


@dataclass
class Result:
    """One claim and what was measured. `goal` is what was asked for, never adjusted to `value`."""

    claim: str
    value: Any
    unit: str
    goal: str
    holds: bool
    spread: Any
    workload: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lab:
    """Where the real models and data sets are, where a benchmark keeps what it made and what it measured so far, and whether
    only a slice is wanted."""

    models: Path
    data: Path
    store: Path
    cells: Path
    quick: bool

    @property
    def smollm2(self) -> Path:
        return self.models / "smollm2-135m-instruct"

    @property
    def tinyllama(self) -> Path:
        return self.models / "tinyllama-1.1b-chat"

    @property
    def stories(self) -> Path:
        return self.models / "stories15m"

    @property
    def drafts(self) -> Path:
        return self.models / "drafts"

    def kept(self, cell: str, measure: Callable[[], Any]) -> Any:
        """A cell as JSON has it: measured now, or before the benchmark was cut off."""
        path = self.cells / f"{cell}.json"
        if not path.exists():
            write_json(path, json.loads(json.dumps(measure(), default=float)))
        return read_json(path)

    def arithmetic(self) -> str:
        """In which drafts learn: what the processor that began the figure has units for. Others that go on use the same, so
        that all drafts are trained alike."""
        return str(self.kept("arithmetic", own_arithmetic))


def own_arithmetic() -> str:
    """What this processor has units for."""
    return "float32" if has_bf16_units() is False else "bfloat16"


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        sys.exit(f"{variable} must name a folder; CONTRIBUTING.md says what belongs into it")
    return Path(value).resolve()


def open_lab(name: str, quick: bool, carried: bool = False) -> Lab:
    """As the environment says where it is. Cells that are `carried` stand in the repository until the figure is published, so
    that another machine of the kind can go on."""
    store = Path(os.environ.get("DRAFTSMITH_STORE", ROOT / "runs")) / ("quick" if quick else "benchmarks")
    cells = ROOT / "benchmarks" if carried and not quick else store
    return Lab(_folder("DRAFTSMITH_LAB"), _folder("DRAFTSMITH_DATA"), store, cells / "cells" / name, quick)


def refuse_busy(lab: Lab, busy: bool, *timed: Path) -> None:
    """So that no cell of a disturbed machine is kept, let alone published, nor the records that were `timed` meanwhile. A quick
    slice only says that it was one."""
    if busy and not lab.quick:
        for folder in timed:
            shutil.rmtree(folder)
        sys.exit("this machine is busy, or its host kept much of it; run this again when it is quiet")


def short_prompts(lab: Lab, num_prompts: int, max_new_tokens: int, engine: dict[str, Any]) -> list[TraceRow]:
    """What the timed figures run over: short prompts of HellaSwag and chat, `num_prompts` of each, and SmolLM2's answers."""
    trace = api.record(
        target=lab.smollm2,
        datasets=("hellaswag", "chat"),
        data=lab.data,
        num_prompts=num_prompts,
        max_prompt_tokens=400,
        max_new_tokens=max_new_tokens,
        engine=engine,
        store=lab.store,
    )
    return list(TraceReader(trace.folder).rows())


def run(name: str, measure: Callable[[Lab], Result], carried: bool = False) -> None:
    """Measure, publish, print the figure on the last line, and exit 1 where the goal is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=measure.__doc__)
    parser.add_argument("--quick", action="store_true", help="a slice of the same workload; its result is not published")
    quick = parser.parse_args().quick
    lab = open_lab(name, quick, carried)
    result = measure(lab)
    provenance = collect({}).model_dump(mode="json", exclude={"inputs", "seconds", "command"})
    published = {
        **asdict(result),
        "holds": bool(result.holds),
        "command": f"python -m benchmarks.{name}" + (" --quick" if quick else ""),
        "provenance": provenance,
    }
    folder = lab.store / "results" if quick else RESULTS
    write_json(folder / f"{name}.json", json.loads(json.dumps(published, default=float)))
    shutil.rmtree(lab.cells, ignore_errors=True)
    print(f"{name}: {result.value} {result.unit} (goal: {result.goal}) {'holds' if result.holds else 'MISSED'}")
    sys.exit(0 if result.holds else 1)
