"""Pruning: the chain of pruners ends at the shape asked for, and what cannot be cut is refused before anything is loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftsmith import api
from draftsmith.cli import app
from draftsmith.core.errors import ConfigError, DataError, PlanError
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import read_json
from tests.tiny import tiny_llama

pytest.importorskip("transformers")

from safetensors.torch import load_file

LEARNT = {"text": {"words": {"path": "pyproject.toml"}}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source"), layers=4)


def recorded(source: Path, store: Path, folder: Path, split: str, num_prompts: int = 4) -> Path:
    (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "w{i} w{i + 1}"}}\n' for i in range(60)))
    engine = {"dtype": "float32", "threads": 1}
    data = folder / "prompts.jsonl"
    return api.record(
        target=source,
        datasets=("jsonl",),
        data=data,
        split=split,
        num_prompts=num_prompts,
        max_new_tokens=12,
        engine=engine,
        store=store,
    ).folder


@pytest.fixture(scope="module")
def trace(source: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(source, store, tmp_path_factory.mktemp("data"), "train")


def cut(source: Path, trace: Path, store: Path, shape: dict[str, int], **more: Any) -> Any:
    return api.prune(source=source, trace=trace, shape=shape, engine={"dtype": "float32", "threads": 1}, store=store, **more)


def test_layers_then_the_rest(source: Path, trace: Path, store: Path) -> None:
    shape = {"layers": 2, "heads": 2, "kv_heads": 1, "hidden": 32, "intermediate": 50}
    kept = cut(source, trace, store, shape)
    made = kept.record
    assert made.pruners == ("depth", "width")
    assert {name: getattr(made.shape, name) for name in shape} == shape
    assert len(made.layers_kept) == 2
    plan = read_json(kept.folder / "1-width" / "plan.json")
    assert [layer["index"] for layer in plan["layers"]] == list(made.layers_kept)
    card = api.evaluate(
        trace=trace, draft=kept.folder / "model", lookaheads=(3,), engine={"dtype": "float32", "threads": 1}, store=store
    )
    assert 1 <= card.record.overall.at(3).tokens_per_step <= 4


def test_the_same_call_again_does_nothing(source: Path, trace: Path, store: Path) -> None:
    first = cut(source, trace, store, {"layers": 3})
    written = (first.folder / "model" / "model.safetensors").stat().st_mtime_ns
    assert cut(source, trace, store, {"layers": 3}).folder == first.folder
    assert (first.folder / "model" / "model.safetensors").stat().st_mtime_ns == written


def test_a_search_that_was_interrupted_goes_on(source: Path, trace: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftsmith.pruners import depth

    asked: list[int] = []
    without_each = depth.Judge.without_each

    def watched(judge: Any, kept: Any) -> Any:
        asked.append(len(kept))
        if asked == [4, 3]:
            raise KeyboardInterrupt
        return without_each(judge, kept)

    monkeypatch.setattr(depth.Judge, "without_each", watched)
    with pytest.raises(KeyboardInterrupt):
        cut(source, trace, store, {"layers": 1}, num_rows=3)
    kept = cut(source, trace, store, {"layers": 1}, num_rows=3)
    assert asked == [4, 3, 3, 2]
    assert kept.record.shape.layers == 1
    assert set(cut(source, trace, store, {"layers": 2}, num_rows=3).record.layers_kept) > set(kept.record.layers_kept)
    assert asked == [4, 3, 3, 2], "one search serves all depths"
    cut(source, trace, store, {"layers": 3}, num_rows=2)
    assert asked[4:] == [4], "other rows are another search"


def test_an_order_that_is_known_needs_no_search(
    source: Path, trace: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftsmith.pruners import depth

    monkeypatch.setattr(depth, "load_source", lambda job: pytest.fail("nothing is to be computed"))
    by = [{"kind": "depth", "settings": {"order": [2, 0, 3]}}]
    assert cut(source, trace, store, {"layers": 2}, pruners=by).record.layers_kept == (1, 3)
    assert cut(source, trace, store, {"layers": 3}, pruners=by).record.layers_kept == (0, 1, 3)


@pytest.mark.parametrize(
    ("shape", "more", "error", "says"),
    [
        ({"layers": 5}, {}, PlanError, "5 layers cannot be cut from 4"),
        ({"hidden": 33}, {}, PlanError, "cannot have 33 hidden dimensions with 4 heads"),
        ({}, {}, ConfigError, "the shape asked for is the source's own"),
        ({"layers": 2, "hidden": 32}, {"pruners": [{"kind": "depth"}]}, ConfigError, "depth cannot cut hidden"),
        ({"layers": 2}, {"pruners": [{"kind": "depth", "settings": {"beam": 0}}]}, ConfigError, "beam"),
        ({"layers": 2}, {"pruners": [{"kind": "depth"}, {"kind": "l0"}]}, ConfigError, "two of the pruners cut layers"),
        ({"layers": 2}, {"pruners": [{"kind": "width"}, {"kind": "depth"}]}, ConfigError, "depth judges layers with all"),
        (
            {"layers": 2, "hidden": 32},
            {"pruners": [{"kind": "depth"}, {"kind": "distill", "settings": LEARNT}, {"kind": "width"}]},
            ConfigError,
            "width would cut what distill has trained",
        ),
        (
            {"layers": 2},
            {"pruners": [{"kind": "depth", "settings": {"order": [1, 1]}}]},
            PlanError,
            "an order of 2 layers does not lead from 4 to 2",
        ),
        (
            {"layers": 2},
            {"pruners": [{"kind": "depth", "settings": {"order": [1, 4]}}]},
            PlanError,
            "name 2 different ones of 0 to 3",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    source: Path, trace: Path, store: Path, shape: dict[str, int], more: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        cut(source, trace, store, shape, **more)


def test_prompts_that_drafts_are_judged_by_are_not_looked_at(source: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds prompts of the test split"):
        cut(source, recorded(source, store, tmp_path, "test"), store, {"layers": 2})


def test_the_verb_says_what_it_made_and_where(source: Path, trace: Path, store: Path) -> None:
    options = ["--source", str(source), "--trace", str(trace), "--store", str(store), "--dtype", "float32", "--threads", "1"]
    done = CliRunner().invoke(app, ["prune", *options, "--intermediate", "64", "--pruner", "width"])
    assert done.exit_code == 0, done.output
    said = done.stdout.splitlines()
    assert (
        said[-3]
        == f"{source.name} cut by width: 4 layers, 4 heads (2 kv), 64 hidden, 64 neurons, 64 output rows, 0.2M parameters"
    )
    assert said[-2] == "layers kept: 0, 1, 2, 3"
    assert (Path(said[-1]) / "model.safetensors").exists()


def test_several_ranks_prune_and_distill_as_one_does(source: Path, trace: Path, tmp_path: Path) -> None:
    """l0 on all ranks, its weights on to distill, and the same call again on another number of them."""
    words = " ".join(f"w{(7 * i) % 60}" for i in range(400))
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{words}"}}\n' for _ in range(4)))
    train = {"steps": 4, "batch": 4, "micro_batch": 2, "length": 16, "precision": "float32", "save_every": 2}
    training = {"text": {"words": {"path": str(tmp_path / "text.jsonl")}}, "train": train}
    hardly = {**training, "train": {**train, "learning_rate": 1e-9}}
    settings = {
        "source": str(source), "trace": str(trace), "shape": {"layers": 2, "intermediate": 64}, "engine": {"threads": 1},
        "pruners": [{"kind": "l0", "settings": training}, {"kind": "distill", "settings": hardly}],
    }  # fmt: skip
    (tmp_path / "prune.yaml").write_text(json.dumps(settings))
    words_ = ["-m", "draftsmith", "prune", "--config", str(tmp_path / "prune.yaml"), "--store", str(tmp_path / "store")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words_]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "store" / "checkpoints").iterdir()
    assert read_json(folder / "record.json")["pruners"] == ["l0", "distill"]
    trained, distilled = (load_file(folder / part / "model.safetensors") for part in ("0-l0/model", "model"))
    assert trained.keys() == distilled.keys()
    assert model_shape(folder / "model").intermediate == 64
    assert all((distilled[name] - trained[name]).abs().max() < 1e-6 for name in trained), "it goes on from l0's weights"
    assert not list(folder.glob("*/unfinished")), "checkpoints are there to go on from, and it has ended"
    again = subprocess.run([sys.executable, *words_], capture_output=True, text=True, timeout=240)
    assert again.stdout.splitlines()[-1] == str(folder / "model")


def test_output_rows_of_what_the_target_writes(source: Path, trace: Path, store: Path) -> None:
    """A draft that cannot propose some tokens, and is the same in all others: what it costs is what it cannot propose."""
    from draftsmith.core.trace import TraceReader

    kept = cut(source, trace, store, {"rows": 12})
    assert kept.record.pruners == ("rows",)
    assert (kept.record.shape.vocabulary, kept.record.shape.embedded) == (12, 64)
    ids = load_file(kept.folder / "model" / "model.safetensors")["lm_head.kept_ids"].tolist()
    written = [token for row in TraceReader(trace).rows() for token in row.output_ids[: row.num_output].tolist()]
    counts = {token: written.count(token) for token in range(64)}
    assert min(counts[token] for token in ids) >= max(counts[token] for token in range(64) if token not in ids)
    card = api.evaluate(
        trace=trace, draft=kept.folder / "model", lookaheads=(1,), engine={"dtype": "float32", "threads": 1}, store=store
    )
    share = sum(counts[token] for token in ids) / len(written)
    assert card.record.overall.at(1).acceptance_by_position[0] == pytest.approx(share, abs=0.15)


def test_nothing_comes_after_rows(source: Path, trace: Path, store: Path) -> None:
    with pytest.raises(ConfigError, match="fewer output rows is not cut or trained further"):
        cut(source, trace, store, {"layers": 2, "rows": 20}, pruners=[{"kind": "rows"}, {"kind": "depth"}])


def test_a_head_is_fitted_last_and_before_training(source: Path, trace: Path, store: Path, tmp_path: Path) -> None:
    chain: list[dict[str, Any]] = [{"kind": "depth", "settings": {"order": [3, 2]}}, {"kind": "refit"}]
    more = recorded(source, store, tmp_path, "train", num_prompts=24)
    plain, kept = (cut(source, more, store, {"layers": 2}, pruners=chain[:count]) for count in (1, 2))
    assert kept.record.pruners == ("depth", "refit")
    ours, theirs = (load_file(one.folder / "model" / "model.safetensors") for one in (kept, plain))
    assert [name for name in ours if not (ours[name] == theirs[name]).all()] == ["lm_head.weight"]
    distill = {"kind": "distill", "settings": {"text": LEARNT["text"]}}
    for wrong in ([{"kind": "refit"}, {"kind": "depth"}], [{"kind": "depth"}, distill, {"kind": "refit"}]):
        with pytest.raises(ConfigError, match="let refit come last"):
            cut(source, trace, store, {"layers": 2}, pruners=wrong)


def test_rows_come_last(source: Path, trace: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": " ".join(f"w{i % 60}" for i in range(200))}))
    train = {"steps": 2, "batch": 2, "micro_batch": 2, "length": 16, "precision": "float32"}
    distill = {"kind": "distill", "settings": {"text": {"words": {"path": str(tmp_path / "text.jsonl")}}, "train": train}}
    chain = [{"kind": "depth"}, distill, {"kind": "rows"}]
    kept = cut(source, trace, store, {"layers": 2, "rows": 20}, pruners=chain)
    assert (kept.record.shape.layers, kept.record.shape.vocabulary) == (2, 20)
