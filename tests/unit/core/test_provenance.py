"""Where a record came from."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from draftsmith import __version__
from draftsmith.core import provenance
from draftsmith.core.provenance import collect, machine, packages

HERE = Path(__file__).parent


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_of(file: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The commit that a package would name whose module lies at `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    monkeypatch.setattr(provenance, "__file__", str(file))
    return provenance._commit.__wrapped__()


def test_it_tells_what_ran_when_and_from_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/draftsmith", "record", "--tail", "3"])
    found = collect({"model": "abc"}, 2.5)
    assert found.command == ["draftsmith", "record", "--tail", "3"]
    assert datetime.now(UTC) - datetime.fromisoformat(found.date) < timedelta(minutes=1)
    assert (found.inputs, found.seconds) == ({"model": "abc"}, 2.5)
    assert found.python == ".".join(map(str, sys.version_info[:3]))


def test_versions_are_those_that_are_installed() -> None:
    found = packages()
    assert found["draftsmith"] == __version__
    assert found["numpy"] == sys.modules["numpy"].__version__
    assert set(found) <= set(provenance._PACKAGES)


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_PACKAGES", ("numpy", "no-such-package"))
    assert list(packages()) == ["numpy"]


def test_the_machine() -> None:
    found = machine()
    assert found["cores"] == os.cpu_count()
    assert found["memory_gb"] > 0
    assert found["cpu"]
    assert isinstance(found["gpus"], list)


@pytest.mark.parametrize(
    ("described", "units"),
    [
        ({"flags": "fpu avx512f amx_bf16 amx_tile"}, True),
        ({"flags": "fpu avx512f avx512_bf16"}, True),
        ({"flags": "fpu avx2 avx512f avx512_vnni"}, False),
        ({"Features": "fp asimd bf16"}, True),
        ({"Features": "fp asimd"}, False),
        ({}, None),
    ],
)
def test_a_processor_says_whether_it_computes_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, described: dict[str, str], units: bool | None
) -> None:
    monkeypatch.setattr(provenance, "_cpuinfo", lambda: described)
    assert provenance.has_bf16_units() is units
    assert machine()["bf16_units"] is units


@pytest.mark.parametrize("command", [["no-such-program"], [sys.executable, "-c", "raise SystemExit(1)"]])
def test_a_program_that_is_not_there_tells_nothing(command: list[str]) -> None:
    assert provenance._lines(command) == []


def test_a_checkout_names_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "src" / "draftsmith" / "core" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    assert commit_of(module, monkeypatch) == git(tmp_path, "rev-parse", "--short=12", "HEAD")


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(tmp_path / "draftsmith" / "core" / "provenance.py", monkeypatch) is None


def test_the_users_own_repository_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-qm", "theirs", "--allow-empty")
    (tmp_path / ".gitignore").write_text(".venv/\n")
    module = tmp_path / ".venv" / "lib" / "site-packages" / "draftsmith" / "core" / "provenance.py"
    assert commit_of(module, monkeypatch) is None
