"""Replay: numbers that can be computed by hand, and work that is done once."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError, DataError, RecordError, VocabularyError
from draftsmith.core.protocols import DraftScore
from draftsmith.core.records import Scorecard
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import Store, read_record
from draftsmith.core.trace import TraceRow
from draftsmith.core.vocabulary import Vocabulary
from draftsmith.stages.evaluate import EvaluateConfig, evaluate
from tests.unit.builders import (
    VOCABULARY,
    FakeEngine,
    Plugins,
    PowerCutError,
    agreeing,
    assert_explains,
    floats,
    ints,
    trace_row,
    write_model,
    write_trace,
)

Score = Callable[..., Scorecard]
FIVE = trace_row("five", [11, 12, 13, 14, 15])  # and a draft that gets the third of them wrong
NGRAM = {"kind": "ngram"}


def proposing(**outputs: Sequence[int]) -> Callable[[TraceRow], DraftScore]:
    """A greedy draft that would write these, by prompt."""
    return lambda row: DraftScore(ints(*outputs[row.prompt_id]), row.logprobs, row.logprobs)


WRONG_AT_THIRD = proposing(five=[11, 12, 99, 14, 15])


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_model(tmp_path / "draft")


def config(trace: Path, draft: Path | dict[str, Any], **changes: Any) -> EvaluateConfig:
    named = {"kind": "model", "path": str(draft)} if isinstance(draft, Path) else draft
    values = {"trace": str(trace), "draft": named, "lookaheads": (1, 2), "engine": {"kind": "fake"}}
    return parse_config(EvaluateConfig, values | changes, "the settings")


@pytest.fixture
def score(tmp_path: Path) -> Score:
    """Evaluates rows and gives the scorecard."""

    def run(rows: Sequence[TraceRow], draft: Path | dict[str, Any], trace: Any = None, **changes: Any) -> Scorecard:
        folder = write_trace(tmp_path / "trace", [rows], **trace or {})
        return read_record(Scorecard, evaluate(config(folder, draft, **changes), Store(tmp_path / "runs")))

    return run


class TestByHand:
    def test_greedy(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        """Lookahead 1: (11 12) (13) (14 15). Lookahead 2: (11 12 13) (14 15)."""
        engine.score_row = WRONG_AT_THIRD
        card = score([FIVE], draft)
        one, two = card.overall.points
        assert (one.steps, one.tokens_per_step, one.accepted_per_step) == (3, pytest.approx(5 / 3), pytest.approx(2 / 3))
        assert (two.steps, two.tokens_per_step) == (2, 2.5)
        # Of the two steps at lookahead 2 both accept their first token; the second of (14 15) is the bonus token.
        assert two.acceptance_by_position == (1.0, 0.5)
        assert card.overall.at(2) == two

    def test_first_token_straight_from_prefill(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        """Without 11. Lookahead 1: (12 13) (14 15). Lookahead 2: (12 13) (14 15)."""
        engine.score_row = WRONG_AT_THIRD
        card = score([FIVE], draft, {"first_drafted": 1})
        assert card.first_drafted == 1
        assert card.overall.num_tokens == 4
        assert [point.tokens_per_step for point in card.overall.points] == [2, 2]

    def test_the_engine_that_will_serve_decides_on_the_first_token(
        self, score: Score, draft: Path, plugins: Plugins, engine: FakeEngine
    ) -> None:
        engine.score_row = WRONG_AT_THIRD
        plugins.engines["other"] = FakeEngine(first_drafted=1)
        card = score([FIVE], draft, serve="other")
        assert (card.scored_by, card.served_by, card.first_drafted) == ("fake", "other", 1)
        assert card.overall.at(1).tokens_per_step == 2
        assert plugins.engines["other"].opened == []

    def test_sampling_on_both_sides(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        """Chances 1/2, 1/2, 1. S(2) = 1, S(1) = 1 + S(2)/2, S(0) = 1 + S(1)/2 + S(2)/2 at lookahead 1; at lookahead 2
        S(0) = 1 + S(1)/2 + S(2)/4 and S(1) = 1 + S(2)/2."""
        row = trace_row("three", [11, 12, 13], logprobs=floats(math.log(0.8), math.log(0.5), math.log(0.1)))
        log_q = floats(math.log(0.4), math.log(0.25), math.log(0.6))
        engine.score_row = lambda row: DraftScore(row.output_ids, log_q, log_q)
        model = {"kind": "model", "path": str(draft), "method": "probabilistic"}
        card = score([row], model, {"sampling": Sampling(temperature=1.0)})
        assert card.overall.at(1).steps == pytest.approx(1 + 1.5 / 2 + 1 / 2)
        assert card.overall.at(2).steps == pytest.approx(1 + 1.5 / 2 + 1 / 4)
        assert card.overall.at(1).tokens_per_step == pytest.approx(3 / 2.25)

    @pytest.mark.parametrize(("temperature", "method"), [(1.0, "greedy"), (0.0, "probabilistic")])
    def test_a_draft_proposes_its_best_token(
        self, score: Score, draft: Path, engine: FakeEngine, temperature: float, method: str
    ) -> None:
        """Either it does so by its own method, or because a greedy target leaves nothing to sample."""
        engine.score_row = WRONG_AT_THIRD
        model = {"kind": "model", "path": str(draft), "method": method}
        card = score([FIVE], model, {"sampling": Sampling(temperature=temperature)})
        assert card.overall.at(1).steps == 3

    def test_over_prompts_it_is_a_ratio_of_sums(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        rows = [FIVE, trace_row("two", [21, 22], dataset="other"), trace_row("one", [31])]
        engine.score_row = proposing(five=[11, 12, 99, 14, 15], two=[99, 99], one=[31])
        card = score(rows, draft)
        assert card.overall.num_prompts == 3
        assert card.overall.at(1).tokens_per_step == pytest.approx((5 + 2 + 1) / (3 + 2 + 1))
        assert card.by_dataset["fake"].at(1).tokens_per_step == pytest.approx((5 + 1) / (3 + 1))
        assert card.by_dataset["other"].at(1).tokens_per_step == 1

    def test_a_prompt_with_nothing_drafted_does_not_count(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        engine.score_row = agreeing
        card = score([FIVE, trace_row("one", [31], dataset="other")], draft, {"first_drafted": 1})
        assert (card.overall.num_prompts, list(card.by_dataset)) == (1, ["fake"])

    def test_the_tail_counts_for_the_engines_counters_only(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        row = trace_row("five", [11, 12, 13, 14, 15], num_output=3)
        card = score([row], draft, {"tail": 2})
        assert card.overall.at(2).tokens_per_step == 3
        assert card.overall.at(1).engine_accepted_by_position == (2.0,)
        assert card.overall.at(2).engine_accepted_by_position == (1.0, 1.0)
        assert card.overall.at(2).accepted_per_step == 2

    @pytest.mark.parametrize("draft_of", [lambda path: path, lambda path: NGRAM], ids=["model", "ngram"])
    @pytest.mark.parametrize(("tail", "lookaheads", "known"), [(0, (1,), True), (0, (1, 2), False), (1, (1, 2), True)])
    def test_the_engines_counters_need_a_tail_as_long_as_the_proposals(
        self, score: Score, draft: Path, engine: FakeEngine, draft_of: Any, tail: int, lookaheads: tuple[int, ...], known: bool
    ) -> None:
        row = trace_row("three", [11, 12, 13, 14][: 3 + tail], num_output=3)
        card = score([row], draft_of(draft), {"tail": tail}, lookaheads=lookaheads)
        assert [point.engine_accepted_by_position is not None for point in card.overall.points] == [known] * len(lookaheads)

    @pytest.mark.usefixtures("engine")
    def test_the_card_says_what_was_scored(self, score: Score, draft: Path) -> None:
        card = score([FIVE], draft, {"split": "probe"})
        assert (card.target, card.split, card.versions, card.sampling) == ("target", "probe", {"fake": "1"}, Sampling())
        assert card.draft.kind == "model"
        assert card.draft_fingerprint
        assert (card.scored_by, card.served_by) == ("fake", "fake")


class TestNgram:
    REPEATING = trace_row("loop", [12, 13, 11, 12, 13], prompt_ids=ints(11, 12, 13, 11))

    def test_it_opens_no_model(self, score: Score, engine: FakeEngine) -> None:
        """Every token was seen before: lookahead 1 (12 13) (11 12) (13), lookahead 2 (12 13 11) (12 13)."""
        card = score([self.REPEATING], NGRAM)
        assert [point.steps for point in card.overall.points] == [3, 2]
        assert (card.draft_fingerprint, card.versions) == (None, {})
        assert (card.scored_by, card.served_by) == (None, "fake")
        assert engine.opened == []

    @pytest.mark.usefixtures("engine")
    def test_first_token_straight_from_prefill(self, score: Score) -> None:
        card = score([self.REPEATING], NGRAM, {"first_drafted": 1})
        assert [point.steps for point in card.overall.points] == [2, 2]

    def test_other_ngrams_are_another_card(self, score: Score, engine: FakeEngine) -> None:
        longest = score([self.REPEATING], NGRAM | {"min_ngram": 3})
        assert longest.overall.at(1).tokens_per_step < score([self.REPEATING], NGRAM).overall.at(1).tokens_per_step

    @pytest.mark.parametrize("serve", [None, "fake"])
    def test_it_needs_no_engine(self, score: Score, plugins: Plugins, serve: str | None) -> None:
        plugins.engines["fake"] = ModuleNotFoundError("No module named 'torch'", name="torch")
        card = score([self.REPEATING], NGRAM, {"first_drafted": 1}, serve=serve)
        assert card.first_drafted == 1
        assert [point.steps for point in card.overall.points] == [2, 2]
        assert plugins.loaded == []


class TestOnce:
    SHARDS = ([FIVE], [trace_row("six", [21, 22])], [trace_row("seven", [31, 32, 33])])

    @pytest.fixture
    def trace(self, tmp_path: Path) -> Path:
        return write_trace(tmp_path / "trace", self.SHARDS)

    def test_the_second_call_does_nothing(self, tmp_path: Path, trace: Path, draft: Path, plugins: Plugins) -> None:
        first = evaluate(config(trace, draft), Store(tmp_path))
        plugins.loaded.clear()
        assert evaluate(config(trace, draft), Store(tmp_path)) == first
        assert plugins.loaded == []

    def test_the_place_of_trace_and_draft_does_not_count(
        self, tmp_path: Path, trace: Path, draft: Path, engine: FakeEngine
    ) -> None:
        first = evaluate(config(trace, draft), Store(tmp_path))
        elsewhere = write_trace(tmp_path / "there", self.SHARDS)
        assert evaluate(config(elsewhere, write_model(tmp_path / "copy")), Store(tmp_path)) == first
        assert len(engine.opened) == 1

    @pytest.mark.parametrize(
        "changes", [{"lookaheads": (1, 2, 3)}, {"serve": "fake"}, {"engine": {"kind": "fake", "threads": 1}}]
    )
    def test_other_settings_are_another_card(
        self, tmp_path: Path, trace: Path, draft: Path, engine: FakeEngine, changes: dict[str, Any]
    ) -> None:
        assert evaluate(config(trace, draft), Store(tmp_path)) != evaluate(config(trace, draft, **changes), Store(tmp_path))

    @pytest.mark.usefixtures("engine")
    def test_another_draft_is_another_card(self, tmp_path: Path, trace: Path, draft: Path) -> None:
        other = write_model(tmp_path / "other", 1.0)
        assert evaluate(config(trace, draft), Store(tmp_path)) != evaluate(config(trace, other), Store(tmp_path))

    def test_an_interrupted_call_scores_only_the_rest(
        self, tmp_path: Path, trace: Path, draft: Path, plugins: Plugins, engine: FakeEngine
    ) -> None:
        whole = evaluate(config(trace, draft), Store(tmp_path / "whole"))
        assert engine.calls == [1, 1, 1]
        plugins.engines["fake"] = FakeEngine(breaks_after=1)
        with pytest.raises(PowerCutError):
            evaluate(config(trace, draft), Store(tmp_path / "broken"))
        plugins.engines["fake"] = rest = FakeEngine()
        resumed = evaluate(config(trace, draft), Store(tmp_path / "broken"))
        assert rest.calls == [1, 1]
        for name in ("record.json", *(f"scores-{index:05d}.parquet" for index in range(3))):
            assert (resumed / name).read_bytes() == (whole / name).read_bytes()

    def test_scores_of_another_trace_are_refused(self, tmp_path: Path, trace: Path, draft: Path, plugins: Plugins) -> None:
        plugins.engines["fake"] = FakeEngine(breaks_after=2)
        with pytest.raises(PowerCutError):
            evaluate(config(trace, draft), Store(tmp_path))
        (folder,) = (tmp_path / "scorecards").iterdir()
        (folder / "scores-00001.parquet").replace(folder / "scores-00000.parquet")
        with pytest.raises(RecordError) as caught:
            evaluate(config(trace, draft), Store(tmp_path))
        named = f"{folder / 'scores-00000.parquet'} does not belong to this trace"
        assert_explains(caught.value, named, way_out="evaluate again")


class TestRefused:
    def test_a_draft_with_other_tokens(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        engine.vocabulary = Vocabulary(model="draft", tokens=VOCABULARY.tokens | {5: "five"}, rows=128)
        with pytest.raises(VocabularyError) as caught:
            score([FIVE], draft)
        assert_explains(caught.value, "target and draft disagree on 1 of 128 tokens", "'five'", way_out="target's tokenizer")
        assert engine.calls == []

    @pytest.mark.usefixtures("engine")
    def test_a_trace_that_is_not_there(self, tmp_path: Path, draft: Path) -> None:
        with pytest.raises(RecordError, match="holds no finished record"):
            evaluate(config(tmp_path, draft), Store(tmp_path))

    @pytest.mark.parametrize(
        ("method", "sampling"), [("probabilistic", Sampling(temperature=0.7, top_k=0)), ("greedy", Sampling())]
    )
    def test_the_draft_is_scored_as_the_serving_engine_samples(
        self, score: Score, draft: Path, engine: FakeEngine, method: str, sampling: Sampling
    ) -> None:
        """Our fake engine applies no top-k to its drafts. Of a draft that proposes its best token, nothing but that matters."""
        model = {"kind": "model", "path": str(draft), "method": method}
        score([FIVE], model, {"sampling": Sampling(temperature=0.7, top_k=5)})
        assert engine.opened == [("scorer", draft, sampling)]

    @pytest.mark.parametrize("lookaheads", [(0,), (-1,), (-1, 3)])
    def test_a_lookahead_that_looks_nowhere(
        self, score: Score, draft: Path, engine: FakeEngine, lookaheads: tuple[int, ...]
    ) -> None:
        with pytest.raises(ConfigError, match=r"lookaheads.*greater than or equal to 1"):
            score([FIVE], draft, lookaheads=lookaheads)

    def test_a_trace_in_which_nothing_was_drafted(self, score: Score, draft: Path, engine: FakeEngine) -> None:
        with pytest.raises(DataError) as caught:
            score([trace_row("one", [31])], draft, {"first_drafted": 1})
        assert_explains(caught.value, "no token that a draft could propose", way_out="record more than one new token")


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def test_a_card_of_one_prompt_is_json_that_everybody_reads(
    tmp_path: Path, score: Score, draft: Path, engine: FakeEngine
) -> None:
    card = score([FIVE], draft)
    assert [point.tokens_per_step_error for point in card.overall.points] == [None, None]
    (file,) = tmp_path.glob("runs/scorecards/*/record.json")
    json.loads(file.read_text(), parse_constant=refuse)
