"""One suite for every pruner there is: it ends at the shape asked for, cuts only what it says it cuts, and can be planned."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith.core import registry
from draftsmith.core.errors import ConfigError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import Shape, model_shape
from tests.tiny import tiny_of
from tests.unit.pruners.test_planted import job

pytest.importorskip("transformers")

SMALLER = {"layers": 2, "heads": 2, "kv_heads": 1, "hidden": 32, "intermediate": 40, "vocabulary": 24}


@pytest.fixture(scope="module", params=registry.names("pruners"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_of(tmp_path_factory.mktemp("source"), "llama", tied=True)


def settings(pruner: Any, folder: Path) -> dict[str, Any]:
    """The least that it takes: text and a few steps for one that trains."""
    if not pruner.trains:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    words = " ".join(f"w{(7 * i) % 60}" for i in range(300))
    (folder / "text.jsonl").write_text(json.dumps({"text": words}))
    train = {"steps": 3, "batch": 2, "micro_batch": 2, "length": 16, "precision": "float32"}
    return {"text": {"words": {"path": str(folder / "text.jsonl")}}, "train": train}


def asked(pruner: Any, source: Path, folder: Path) -> PruneJob:
    return job(source, folder / "notes", **{size: SMALLER[size] for size in pruner.cuts})


def test_it_ends_at_the_shape_and_its_checkpoint_loads(name: str, source: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    pruner, shape = registry.load("pruners", name), model_shape(source)
    wanted = asked(pruner, source, tmp_path)
    plan = pruner.plan(wanted, KeepPlan.everything(shape), settings(pruner, tmp_path))
    plan.check(shape)
    assert plan.shape(shape) == wanted.wanted
    pruner.cut(wanted, plan, tmp_path / "model")
    assert model_shape(tmp_path / "model") == wanted.wanted
    assert (tmp_path / "model" / "tokenizer.json").exists()
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_it_says_what_it_cuts(name: str) -> None:
    assert set(registry.load("pruners", name).cuts) <= set(Shape.model_fields)


def test_settings_that_it_does_not_know_are_refused(name: str, tmp_path: Path) -> None:
    pruner = registry.load("pruners", name)
    given = settings(pruner, tmp_path)
    assert pruner.identity(given) == pruner.identity(given)
    with pytest.raises(ConfigError, match="nonsense"):
        pruner.identity({**given, "nonsense": 1})


def test_one_that_trains_says_what_it_takes(name: str, source: Path, tmp_path: Path) -> None:
    pruner = registry.load("pruners", name)
    wanted = asked(pruner, source, tmp_path).wanted
    cost = pruner.expect(source, wanted, settings(pruner, tmp_path), 2)
    assert (cost is not None) == pruner.trains
    if cost is not None:
        assert cost.tokens == 3 * 2 * 16
        assert sum(cost.memory_bytes.values()) > 0


def test_its_versions_are_said(name: str) -> None:
    assert {"torch", "transformers"} <= registry.load("pruners", name).versions().keys()
