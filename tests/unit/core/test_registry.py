"""Plugins by name: listing imports nothing, a wrong name is met with the right one."""

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint, metadata
from pathlib import Path
from typing import Any

import pytest

from draftsmith.core import registry
from draftsmith.core.errors import MissingDependencyError, UnknownPluginError
from tests.unit.builders import Plugins, assert_explains

EXTRAS = metadata("draftsmith").get_all("Provides-Extra") or []


def test_our_own_plugins_are_the_files_of_their_folder() -> None:
    assert {"transformers", "vllm"} <= set(registry.names("engines"))
    assert {"jsonl", "mmlu"} <= set(registry.names("datasets"))
    for group in registry.GROUPS:
        names = registry.names(group)
        assert list(names) == sorted(names)
        assert not [name for name in names if name.startswith("_")]


def test_listing_names_imports_nothing() -> None:
    code = (
        "import sys; from draftsmith.core import registry; found = [registry.names(group) for group in registry.GROUPS];"
        "print([name for name in ('torch', 'transformers', 'vllm', 'datasets', 'draftsmith.engines') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plugin_of_another_package_is_listed_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_engine.py").write_text("ENGINE = 'the engine of acme'\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("acme", "acme_engine:ENGINE", "draftsmith.engines")
    monkeypatch.setattr(registry, "_installed", lambda group: {"acme": point} if group == "engines" else {})
    assert "acme" in registry.names("engines")
    assert "acme" not in registry.names("datasets")
    assert "acme_engine" not in sys.modules
    assert registry.load("engines", "acme") == "the engine of acme"


def test_our_own_plugin_is_loaded() -> None:
    assert list(registry.load("datasets", "jsonl").prompts(Path(__file__).parents[2] / "data"))


@pytest.mark.parametrize(
    ("name", "suggestion"), [("vlm", "; did you mean 'vllm'?"), ("transformer", "; did you mean 'transformers'?"), ("zzz", "")]
)
def test_a_wrong_name(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownPluginError) as caught:
        registry.load("engines", name)
    assert caught.value.problem == f"there is no engine {name!r}{suggestion}"
    assert_explains(caught.value, way_out="use one of transformers, vllm")


def missing(name: str) -> Any:
    def import_module(path: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    return import_module


@pytest.mark.parametrize("name", ["transformers", "vllm"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", missing("torch.nn"))
    with pytest.raises(MissingDependencyError) as caught:
        registry.load("engines", name)
    assert_explains(caught.value, f"the engine {name!r} needs the package 'torch'", way_out=f"'draftsmith[{name}]'")
    assert name in EXTRAS


def test_what_trains_has_an_extra_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", missing("torch"))
    with pytest.raises(MissingDependencyError) as caught:
        registry.load("pruners", "l0")
    assert_explains(caught.value, "the pruner 'l0' needs the package 'torch'", way_out="'draftsmith[training]'")
    assert "training" in EXTRAS


def test_a_missing_file_of_our_own_is_a_bug_and_not_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", missing("draftsmith.engines._gone"))
    with pytest.raises(ModuleNotFoundError, match="_gone"):
        registry.load("engines", "vllm")


def test_a_plugin_of_another_package_that_lacks_something(plugins: Plugins) -> None:
    plugins.engines["acme"] = ModuleNotFoundError("No module named 'acmelib'", name="acmelib")
    with pytest.raises(MissingDependencyError) as caught:
        registry.load("engines", "acme")
    named = "the engine 'acme' needs the package 'acmelib'"
    assert_explains(caught.value, named, way_out="documentation of the package that brings 'acme'")
    assert "pip install" not in caught.value.way_out
