"""One suite for every engine there is, with tiny real checkpoints: what record, score and live owe each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.core import registry
from draftsmith.core.errors import EngineError, MissingDependencyError, VocabularyError
from draftsmith.core.prompts import Message, Prompt
from draftsmith.core.protocols import EngineConfig, Generation, Limits, ModelDraft, NgramDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceRow
from draftsmith.theory.acceptance import replay
from draftsmith.theory.ngram import ngram_chances
from tests.tiny import tiny_llama

GREEDY, WARM = Sampling(), Sampling(temperature=1.0)


@pytest.fixture(scope="module", params=registry.names("engines"))
def engine(request: pytest.FixtureRequest) -> Any:
    try:
        return registry.load("engines", request.param)
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def config(engine: Any, request: pytest.FixtureRequest) -> EngineConfig:
    kind = next(name for name in registry.names("engines") if registry.load("engines", name) is engine)
    return EngineConfig(kind=kind, dtype="float32", threads=2, batch_size=4, max_model_len=256, kv_cache_gb=1)


def requests() -> list[Request]:
    rng = np.random.default_rng(4)
    return [Request(rng.integers(4, 64, size=n).astype(np.int32), 10 + i) for i, n in enumerate((3, 9, 1, 5, 7, 2))]


def rows_of(written: list[Generation]) -> list[TraceRow]:
    return [
        TraceRow(
            "p", "d", "test", request.prompt_ids, one.output_ids, one.num_output, one.logprobs, one.finish_reason, request.seed
        )
        for request, one in zip(requests(), written, strict=True)
    ]


@pytest.fixture(scope="module")
def recorded(engine: Any, config: EngineConfig, target: Path) -> dict[str, list[Generation]]:
    """Everything that needs a recorder, from one start of the engine."""
    with engine.recorder(target, config) as recorder:
        chat = Prompt(dataset="x", key="w5", messages=(Message(role="user", content="w5 w6"),))
        assert recorder.encode(chat) == [5, 9, 10, 6]
        assert recorder.encode(Prompt(dataset="x", key="w5", text="w5 w6")) == [9, 10]
        assert recorder.vocabulary.tokens[4] == "w0"
        assert recorder.eos_ids == (2,)
        assert recorder.dtype == "float32"
        free = recorder.record(requests(), GREEDY, Limits(40, (), top_logprobs=2))
        stop = int(free[0].output_ids[9])
        return {
            "free": free,
            "stopped": recorder.record(requests(), GREEDY, Limits(30, (stop,))),
            "with tail": recorder.record(requests(), GREEDY, Limits(30, (stop,), tail=8)),
            "warm": recorder.record(requests(), WARM, Limits(30, ())),
            "warm again": recorder.record(requests(), WARM, Limits(30, ())),
        }


def test_recording_ends_where_it_should(recorded: dict[str, list[Generation]]) -> None:
    stop = int(recorded["free"][0].output_ids[9])
    for free, stopped, tailed in zip(recorded["free"], recorded["stopped"], recorded["with tail"], strict=True):
        at = np.flatnonzero(free.output_ids[:30] == stop)
        n = int(at[0]) + 1 if len(at) else 30
        assert (stopped.num_output, tailed.num_output) == (n, n)
        assert stopped.finish_reason == tailed.finish_reason == ("eos" if len(at) else "length")
        np.testing.assert_array_equal(stopped.output_ids, free.output_ids[:n])
        np.testing.assert_array_equal(tailed.output_ids, free.output_ids[: n + 8])
        assert len(tailed.logprobs) == n + 8


def test_the_best_token_is_the_one_written_when_greedy(recorded: dict[str, list[Generation]]) -> None:
    for row in recorded["free"]:
        assert row.top_ids is not None
        assert row.top_logprobs is not None
        assert row.top_ids.reshape(-1, 2)[:, 0].tolist() == row.output_ids.tolist()
        np.testing.assert_allclose(row.top_logprobs.reshape(-1, 2)[:, 0], row.logprobs, atol=1e-5)


def test_seeds_are_per_prompt(recorded: dict[str, list[Generation]]) -> None:
    for one, other in zip(recorded["warm"], recorded["warm again"], strict=True):
        np.testing.assert_array_equal(one.output_ids, other.output_ids)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_scoring_the_target_by_itself_gives_its_own_logprobs(
    engine: Any, config: EngineConfig, target: Path, recorded: dict[str, list[Generation]]
) -> None:
    for name, sampling in (("free", GREEDY), ("warm", WARM)):
        rows = rows_of(recorded[name])
        with engine.scorer(target, engine.draft_sampling(sampling), config) as scorer:
            for row, score in zip(rows, scorer.score(rows), strict=True):
                np.testing.assert_allclose(score.logprobs, row.logprobs, atol=1e-4)
                assert (score.top_gaps >= 0).all()
                if sampling.is_greedy:
                    np.testing.assert_array_equal(score.argmax_ids, row.output_ids)


@pytest.mark.parametrize("lookahead", [1, 4])
def test_live_steps_are_those_that_replay_predicts(
    engine: Any, config: EngineConfig, target: Path, draft: Path, recorded: dict[str, list[Generation]], lookahead: int
) -> None:
    rows, first = rows_of(recorded["free"]), engine.first_drafted
    with engine.scorer(draft, GREEDY, config) as scorer:
        hits = [(s.argmax_ids == r.output_ids).astype(float)[first:] for s, r in zip(scorer.score(rows), rows, strict=True)]
    expected = replay(hits, [row.num_output - first for row in rows], [lookahead]).steps[:, 0]
    with engine.live(target, ModelDraft(path=str(draft)), lookahead, GREEDY, config) as live:
        run = live.run(requests(), Limits(40, ()))
    for row, live_row, steps in zip(rows, run.rows, expected, strict=True):
        np.testing.assert_array_equal(live_row.output_ids, row.output_ids)
        assert len(live_row.step_tokens) == steps
        assert live_row.step_tokens.sum() == row.num_output - first


def test_one_engine_runs_and_times_every_lookahead(
    engine: Any, config: EngineConfig, target: Path, draft: Path, recorded: dict[str, list[Generation]]
) -> None:
    """What `profile` stands on: the lookahead can be changed from run to run, and a step's phases add up."""
    rows, first = rows_of(recorded["free"]), engine.first_drafted
    with engine.scorer(draft, GREEDY, config) as scorer:
        hits = [(s.argmax_ids == r.output_ids).astype(float)[first:] for s, r in zip(scorer.score(rows), rows, strict=True)]
    expected = replay(hits, [row.num_output - first for row in rows], [1, 3]).steps
    with engine.live(target, ModelDraft(path=str(draft)), 3, GREEDY, config, adjustable=True) as live:
        timed = live.time_steps(2, 20, (3, 0, 1), 4)
        for at, lookahead in enumerate((1, 3)):
            run = live.run(requests(), Limits(40, ()), lookahead)
            assert [len(row.step_tokens) for row in run.rows] == expected[:, at].tolist()
            assert 0 < run.decode_seconds < run.seconds
            assert 0 < run.decode_tokens <= sum(len(row.output_ids) for row in run.rows)
        again = live.time_steps(4, 10, (1,), 2)
    assert {k: len(steps) for k, steps in (timed | again).items()} == {3: 4, 0: 4, 1: 2}
    for lookahead, steps in timed.items():
        for step in steps:
            assert step.verify > 0
            assert step.overhead > 0
            assert step.context >= 20
            assert (step.draft > 0.2 * step.verify) == (lookahead > 0 or not engine.idle_draft_is_free)


def test_a_draft_with_too_few_positions_is_refused(engine: Any, config: EngineConfig, target: Path, tmp_path: Path) -> None:
    """vLLM would go on without it, and time steps in which no draft runs."""
    short = tiny_llama(tmp_path / "short")
    text = (short / "config.json").read_text()
    (short / "config.json").write_text(text.replace('"max_position_embeddings": 512', '"max_position_embeddings": 64'))
    with engine.live(target, ModelDraft(path=str(short)), 2, GREEDY, config, adjustable=True) as live:
        assert len(live.run(requests(), Limits(20, ())).rows) == len(requests())
        with pytest.raises(EngineError, match="positions"):
            live.run(requests(), Limits(80, ()))
        with pytest.raises(EngineError, match="positions"):
            live.time_steps(2, 100, (2,), 2)


def test_without_a_draft_proposals_cost_nothing(engine: Any, config: EngineConfig, target: Path) -> None:
    with engine.live(target, None, 4, GREEDY, config, adjustable=True) as live:
        timed = live.time_steps(2, 20, (0, 1, 4), 6)
    for steps in timed.values():
        assert float(np.median([step.draft for step in steps])) < 0.05 * float(np.median([step.verify for step in steps]))


def test_a_shape_runs_without_a_tokenizer(engine: Any, config: EngineConfig, tmp_path: Path) -> None:
    shape = {
        "model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 128, "max_position_embeddings": 256,
    }  # fmt: skip
    engine.write_random_model(shape, tmp_path / "shape")
    with engine.live(tmp_path / "shape", None, 0, GREEDY, config) as live:
        steps = live.time_steps(1, 16, (0,), 3)[0]
    assert [round(step.context) for step in steps] == sorted(round(step.context) for step in steps)


def test_prompt_lookup_follows_one_rule_everywhere(
    engine: Any, config: EngineConfig, target: Path, recorded: dict[str, list[Generation]]
) -> None:
    rows, first = rows_of(recorded["free"]), engine.first_drafted
    chances = [ngram_chances(row.prompt_ids, row.output_ids, row.num_output, 3, 3, 1)[first:] for row in rows]
    expected = replay(chances, [row.num_output - first for row in rows], [3]).steps[:, 0]
    with engine.live(target, NgramDraft(max_ngram=3, min_ngram=1), 3, GREEDY, config) as live:
        run = live.run(requests(), Limits(40, ()))
    assert [len(row.step_tokens) for row in run.rows] == expected.tolist()


def test_a_draft_with_other_tokens_is_refused(engine: Any, config: EngineConfig, target: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"w7"', '"other"'))
    with (
        pytest.raises(VocabularyError, match="disagree on 1 of 64"),
        engine.live(target, ModelDraft(path=str(other)), 2, GREEDY, config),
    ):
        pass
