"""Fewer output rows: what the masked replay says of a size is what a checkpoint trimmed to it does."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftsmith import api
from draftsmith.cli import app
from draftsmith.core.errors import ConfigError, DataError, EngineError
from tests.tiny import near_copy, tiny_llama

pytest.importorskip("transformers")

ENGINE = {"dtype": "float32", "threads": 1}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rows")
    target = tiny_llama(folder / "target")
    (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "w{i} w{(3 * i) % 60} w{i + 1}"}}\n' for i in range(59)))

    def recorded(split: str) -> Path:
        return api.record(
            target=target, datasets=("jsonl",), data=folder / "prompts.jsonl", split=split, num_prompts=12, max_new_tokens=24,
            engine=ENGINE, store=folder / "store",
        ).folder  # fmt: skip

    return {
        "draft": near_copy(target, folder / "draft", noise=0.3),
        "counted": recorded("train"),
        "trace": recorded("probe"),
        "test": recorded("test"),
        "store": folder / "store",
    }


def card(given: dict[str, Any], **more: Any) -> Any:
    wanted = {name: given[name] for name in ("draft", "counted", "trace", "store")}
    return api.evaluate_rows(**{**wanted, "rows": (4, 16, 32), "lookaheads": (1, 3, 5), "engine": ENGINE, **more})


@pytest.mark.parametrize("rows", [4, 16, 32])
def test_a_trimmed_checkpoint_does_what_the_masked_replay_says(given: dict[str, Any], rows: int) -> None:
    trimmed = api.prune(
        source=given["draft"], trace=given["counted"], shape={"rows": rows}, engine=ENGINE, store=given["store"]
    )
    real = api.evaluate(
        trace=given["trace"], draft=trimmed.folder / "model", lookaheads=(1, 3, 5), engine=ENGINE, store=given["store"]
    )
    (said,) = (one for one in card(given).record.points if one.rows == rows)
    assert said.curve.model_copy(update={"points": ()}) == real.record.overall.model_copy(update={"points": ()})
    for ours, theirs in zip(said.curve.points, real.record.overall.points, strict=True):
        assert ours.model_dump(exclude={"engine_accepted_by_position"}) == theirs.model_dump(
            exclude={"engine_accepted_by_position"}
        )


def test_the_whole_head_is_the_draft_itself(given: dict[str, Any]) -> None:
    real = api.evaluate(trace=given["trace"], draft=given["draft"], lookaheads=(1, 3, 5), engine=ENGINE, store=given["store"])
    points = card(given).record.points
    assert points[-1].rows == 64
    assert points[-1].ceiling == 1.0
    assert points[-1].curve.at(3).tokens_per_step == real.record.overall.at(3).tokens_per_step
    assert [one.ceiling for one in points] == sorted(one.ceiling for one in points)


def test_what_cannot_be_asked(given: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="prompts of the test split"):
        card(given, counted=given["test"])
    with pytest.raises(ConfigError, match="proposes its most likely token"):
        card(given, draft="ngram")


def test_vllm_says_who_can(given: dict[str, Any]) -> None:
    pytest.importorskip("vllm")
    from draftsmith.engines.vllm import _Scorer

    with pytest.raises(EngineError, match="what a draft thinks of all tokens"):
        _Scorer.score(object(), [], ranks=object())  # type: ignore[arg-type]


def test_the_verb(given: dict[str, Any]) -> None:
    words = ["evaluate", "--trace", given["trace"], "--draft", given["draft"], "--counted", given["counted"], "--rows", "4,16"]
    done = CliRunner().invoke(app, [str(word) for word in (*words, "--store", given["store"], "--dtype", "float32")])
    assert done.exit_code == 0, done.output
    assert "ceiling" in done.output
    assert "rows.png" in done.output
    assert CliRunner().invoke(app, ["evaluate", "--rows", "4"]).exit_code == 2
