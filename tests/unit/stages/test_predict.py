"""Predicting: from records and from numbers, by hand, and every question that has no answer refused in words."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError, PredictionError, RecordError
from draftsmith.core.protocols import Batching, DraftScore, EngineConfig
from draftsmith.core.records import Prediction, ProfileCell, Scorecard
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import Store, read_record
from draftsmith.core.trace import TraceRow
from draftsmith.stages.evaluate import EvaluateConfig, evaluate
from draftsmith.stages.predict import PredictConfig, predict
from draftsmith.theory.formulas import leviathan_tokens_per_step
from draftsmith.theory.schedule import memory_cost
from tests.unit.builders import (
    FakeEngine,
    assert_explains,
    curve,
    floats,
    ints,
    profile_cell,
    profile_record,
    save_record,
    scorecard,
    shape,
    trace_row,
    write_model,
    write_trace,
)

Ask = Callable[..., Prediction]
NUMBERS = {"plain_ms": 20.0, "verify_ms": 22.0, "draft_ms": 2.0, "overhead_ms": 1.0}
CONTINUOUS = Batching(admission="continuous", context="mean", clips_lookahead=False)


def config(**settings: Any) -> PredictConfig:
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    return parse_config(PredictConfig, plain, "the settings")


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    return lambda **settings: read_record(Prediction, predict(config(**settings), Store(tmp_path / "runs")))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return save_record(tmp_path / "profile", profile_record())


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """Lookaheads 1, 2, 3 and 4."""
    return save_record(tmp_path / "card", scorecard(overall=curve(1.5, 1.9, 2.2, 2.4, error=0.05)))


class TestNumbers:
    def test_by_hand(self, ask: Ask) -> None:
        """A step of 3 x 2 + 22 + 1 = 29 ms emits 2.5 tokens; a plain one of 20 ms emits one."""
        found = ask(numbers=NUMBERS, tokens_per_step={3: 2.5}, wanted_tokens_per_second=100)
        (point,), (inverse,) = found.points, found.inverses
        assert (point.lookahead, point.batch, point.context, point.tokens_per_step) == (3, 1, 0, 2.5)
        assert (point.draft_ms, point.verify_ms, point.overhead_ms) == (6, 22, 1)
        assert point.tokens_per_second == pytest.approx(2500 / 29)
        assert point.speedup == pytest.approx(2.5 * 20 / 29)
        assert point.error == 0
        assert found.plain_tokens_per_second == ((1, 0, 50.0),)
        assert inverse.parity_tokens_per_step == pytest.approx(29 / 20)
        assert inverse.parity_draft_ms == pytest.approx(2.5 * 20 - 23)
        assert inverse.required_tokens_per_step == pytest.approx(2.9)
        assert (found.verdict.answer, found.verdict.best) == ("go", point)
        assert not found.replayed_batches
        assert found.memory is None

    def test_verification_costs_a_plain_step_unless_told_otherwise(self, ask: Ask) -> None:
        (point,) = ask(numbers={"plain_ms": 20, "draft_ms": 2}, tokens_per_step={3: 2.5}).points
        assert (point.verify_ms, point.overhead_ms) == (20, 0)

    def test_the_best_lookahead_and_the_schedule_for_vllm(self, ask: Ask) -> None:
        """1.6 in 25 ms, 2.5 in 29 ms, 2.8 in 39 ms."""
        found = ask(numbers=NUMBERS, tokens_per_step={1: 1.6, 3: 2.5, 8: 2.8})
        (cell,) = found.schedule
        assert (cell.lookahead, cell.tokens_per_second) == (3, pytest.approx(2500 / 29))
        assert cell.switched_off_tokens_per_second == 50.0
        assert found.vllm_schedules == {0: ((1, 1, 3),)}
        assert found.verdict.best.lookahead == 3

    def test_a_draft_that_slows_down(self, ask: Ask) -> None:
        found = ask(numbers=NUMBERS | {"draft_ms": 20}, tokens_per_step={2: 1.5, 4: 1.7})
        assert found.verdict.answer == "no-go"
        assert found.vllm_schedules == {0: ((1, 1, 0),)}

    def test_one_acceptance_for_every_token(self, ask: Ask) -> None:
        found = ask(numbers=NUMBERS, acceptance=0.8)
        assert [point.lookahead for point in found.points] == [1, 2, 3, 4, 5, 6, 7, 8]
        for point in found.points:
            assert point.tokens_per_step == pytest.approx(float(leviathan_tokens_per_step(0.8, point.lookahead)))

    def test_lookaheads_of_ones_own(self, ask: Ask) -> None:
        found = ask(numbers=NUMBERS, acceptance=0.8, lookaheads=(2, 12))
        assert [point.lookahead for point in found.points] == [2, 12]

    def test_a_scorecard_with_typed_times(self, ask: Ask, tmp_path: Path) -> None:
        card = save_record(tmp_path / "card", scorecard(overall=curve(*(1 + k / 10 for k in range(1, 13)))))
        found = ask(numbers=NUMBERS, scorecard=card)
        assert [point.lookahead for point in found.points] == list(range(1, 13))

    def test_the_papers_table_of_latencies_at_parity(self, ask: Ask) -> None:
        """Table 5: a draft's latency, what it may be for parity, and the reduction in percent."""
        table = ((79.8, 50.6, 36.6), (87.1, 58.7, 32.6), (114.3, 49.8, 56.4), (139.5, 68.2, 51.1))
        for latency, parity, reduction in table:
            tokens, verify, k = 3.2, 45.0, 5
            times = {"plain_ms": (verify + parity) / tokens, "verify_ms": verify, "draft_ms": latency / k}
            found = ask(numbers=times, tokens_per_step={k: tokens})
            (point,), (inverse,) = found.points, found.inverses
            assert inverse.parity_draft_ms is not None
            assert point.draft_ms == pytest.approx(latency)
            assert inverse.parity_draft_ms == pytest.approx(parity)
            assert 100 * (1 - inverse.parity_draft_ms / point.draft_ms) == pytest.approx(reduction, abs=0.05)

    def test_where_no_answer_exists_it_says_why(self, ask: Ask) -> None:
        """Verification alone takes five plain steps, and lookahead 1 gives two tokens at most."""
        times = {"plain_ms": 10, "verify_ms": 50, "draft_ms": 5}
        (inverse,) = ask(numbers=times, tokens_per_step={1: 1.5}, wanted_tokens_per_second=1).inverses
        assert inverse.parity_tokens_per_step is None
        assert "5.50 tokens per step, and lookahead 1 gives 2 at most" in inverse.parity_tokens_per_step_reason
        assert inverse.parity_draft_ms is None
        assert "verification alone is 35.00 ms too slow" in inverse.parity_draft_ms_reason
        assert inverse.required_tokens_per_step is None
        assert "even one token per step gives more" in inverse.required_tokens_per_step_reason

    def test_nothing_was_wished_for(self, ask: Ask) -> None:
        (inverse,) = ask(numbers=NUMBERS, tokens_per_step={3: 2.5}).inverses
        assert inverse.required_tokens_per_step is None
        assert inverse.required_tokens_per_step_reason == "no throughput was wished for"

    def test_a_draft_that_costs_nothing_and_is_never_right_is_as_fast_as_plain_decoding(self, ask: Ask) -> None:
        """Whatever the times are: rounding is no reason to call parity impossible."""
        for plain_ms in (20.0, 19.0, 2.7):
            found = ask(numbers={"plain_ms": plain_ms, "draft_ms": 0}, tokens_per_step={1: 1.0, 3: 1.0})
            assert [inverse.parity_tokens_per_step for inverse in found.inverses] == pytest.approx([1.0, 1.0])
            assert [point.speedup for point in found.points] == pytest.approx([1.0, 1.0])


class TestFormulas:
    def test_without_overhead_the_papers_is_ours(self, ask: Ask) -> None:
        for point in ask(numbers=NUMBERS | {"overhead_ms": 0}, acceptance=0.7).formulas:
            assert point.paper == pytest.approx(point.ours)

    def test_leviathans_is_ours_where_its_assumptions_hold(self, ask: Ask) -> None:
        for point in ask(numbers={"plain_ms": 20, "draft_ms": 2}, acceptance=0.7).formulas:
            assert point.leviathan == pytest.approx(point.ours)

    @pytest.mark.parametrize("acceptance", [0.0, 1.0])
    def test_at_the_ends(self, ask: Ask, acceptance: float) -> None:
        for point in ask(numbers={"plain_ms": 20, "draft_ms": 2}, acceptance=acceptance).formulas:
            assert point.leviathan == pytest.approx(point.ours)

    def test_real_tokens_are_not_alike(self, ask: Ask) -> None:
        """The acceptance of the first lookahead, 0.8, would give 2.95 tokens at lookahead 3."""
        first, third = ask(numbers={"plain_ms": 20, "draft_ms": 0}, tokens_per_step={1: 1.8, 3: 2.2}).formulas
        assert first.leviathan == pytest.approx(first.ours)
        assert third.leviathan == pytest.approx(50 * 2.952)
        assert third.ours == pytest.approx(50 * 2.2)

    def test_a_profile_without_batch_1_has_none(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        profile = save_record(tmp_path / "large", profile_record(batches=(4, 8)))
        assert ask(profile=profile, scorecard=card).formulas == ()


class TestRecords:
    def test_by_hand(self, ask: Ask, profile: Path, card: Path) -> None:
        """Plain 10 ms; at lookahead 2 a step of 2 + 10 + 1 emits 1.9 tokens a row."""
        found = ask(profile=profile, scorecard=card)
        assert [(p.lookahead, p.batch, p.context) for p in found.points] == [(k, b, 128) for b in (1, 4) for k in (1, 2, 3, 4)]
        second = found.points[5]
        assert (second.tokens_per_second, second.speedup) == (pytest.approx(4 * 1900 / 13), pytest.approx(19 / 13))
        assert found.plain_tokens_per_second == ((1, 128, pytest.approx(100)), (4, 128, pytest.approx(400)))
        assert (found.target, found.draft, found.engine) == ("target", "draft", "fake")
        assert found.verdict.answer == "go"

    def test_lookaheads_between_those_that_were_timed(self, ask: Ask, profile: Path, card: Path) -> None:
        third = ask(profile=profile, scorecard=card, batches=(1,)).points[2]
        assert (third.lookahead, third.draft_ms) == (3, pytest.approx(3.0))

    def test_lookaheads_beyond_those_that_were_timed_are_left_out(self, ask: Ask, tmp_path: Path, profile: Path) -> None:
        card = save_record(tmp_path / "long", scorecard(overall=curve(*[1.5] * 8)))
        found = ask(profile=profile, scorecard=card, batches=(1,))
        assert [point.lookahead for point in found.points] == [1, 2, 3, 4]

    def test_a_choice_of_lookaheads_batches_and_contexts(self, ask: Ask, profile: Path, card: Path) -> None:
        found = ask(profile=profile, scorecard=card, lookaheads=(1, 3), batches=(2,), contexts=(128, 4000))
        places = [(point.lookahead, point.batch, point.context) for point in found.points]
        assert places == [(k, 2, c) for c in (128, 4000) for k in (1, 3)]
        assert set(found.vllm_schedules) == {128, 4000}

    def test_errors_of_acceptance_and_of_both_timings_add_up(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        def step(lookahead: int, batch: int, context: int) -> ProfileCell:
            return profile_cell(lookahead, batch, context, error=0.03 if lookahead else 0.04)

        profile = save_record(tmp_path / "noisy", profile_record(step, batches=(1,)))
        first, second, *_ = ask(profile=profile, scorecard=card).points
        assert first.error == pytest.approx(math.hypot(0.03, 0.04, 0.05 / 1.5))
        assert second.error == pytest.approx(math.hypot(0.03, 0.04, 0.05 / 1.9))

    def test_the_baseline_is_that_without_a_draft_and_switching_off_is_not(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        """An idle draft costs 2 ms here; the baseline was measured at contexts that differ by a few tokens."""

        def step(lookahead: int, batch: int, context: int) -> ProfileCell:
            return profile_cell(lookahead, batch, context, draft_ms=2.0 + lookahead)

        plain = tuple(profile_cell(0, b, c) for b in (1, 4) for c in (126, 1022))
        profile = save_record(tmp_path / "idle", profile_record(step, contexts=(128, 1024), plain=plain))
        found = ask(profile=profile, scorecard=card)
        assert {round(point.tokens_per_second / point.speedup / point.batch, 6) for point in found.points} == {100.0}
        assert [cell.switched_off_tokens_per_second / cell.batch for cell in found.schedule] == pytest.approx([1000 / 12] * 4)

    def test_a_profile_of_verification_with_a_drafts_time_typed_in(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        def step(lookahead: int, batch: int, context: int) -> ProfileCell:
            return profile_cell(lookahead, batch, context, draft_ms=0.0)

        bare = profile_record(step, draft=None, draft_fingerprint=None, draft_shape=None)
        profile = save_record(tmp_path / "bare", bare)
        found = ask(profile=profile, scorecard=card, numbers={"draft_ms": 1.5}, batches=(1,))
        assert [point.draft_ms for point in found.points] == pytest.approx([1.5, 3.0, 4.5, 6.0])
        with pytest.raises(PredictionError) as caught:
            ask(profile=profile, scorecard=card)
        assert_explains(caught.value, "made without a draft", way_out="--draft-ms")

    def test_the_memory_that_a_draft_takes(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        engine = EngineConfig(kind="fake", tensor_parallel=2)
        profile = save_record(tmp_path / "two", profile_record(engine=engine, dtype="float16", contexts=(128, 1024)))
        found = ask(profile=profile, scorecard=card, memory_gb=0.5)
        assert found.memory == memory_cost(shape(), shape(layers=1), "float16", 0.5, 1024, 2)

    def test_the_memory_beside_a_quantised_target(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        engine = EngineConfig(kind="fake", quantization="int8")
        profile = save_record(tmp_path / "packed", profile_record(engine=engine))
        found = ask(profile=profile, scorecard=card, memory_gb=0.5)
        assert found.memory == memory_cost(shape(), shape(layers=1), "float32", 0.5, 128, 1, "int8")

    def test_warned_of_another_target_or_draft(self, ask: Ask, tmp_path: Path, profile: Path) -> None:
        card = save_record(tmp_path / "other", scorecard(target="another", draft_fingerprint="e" * 32))
        of_target, of_draft = ask(profile=profile, scorecard=card).caveats
        assert "the profile is of target, the scorecard of another" in of_target
        assert "timed another draft (draft)" in of_draft

    def test_warned_of_a_busy_machine_and_of_a_context_beyond_the_profile(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        profile = save_record(tmp_path / "busy", profile_record(busy=True, contexts=(128, 1024)))
        assert ask(profile=profile, scorecard=card, contexts=(128, 1024)).caveats == (
            "something else was running while the profile was made",
        )
        beyond = ask(profile=profile, scorecard=card, contexts=(2048,)).caveats[1]
        assert beyond == "context 2048 was not profiled: beyond 1024, step times go on in a straight line"
        one = save_record(tmp_path / "one", profile_record(contexts=(128,)))
        assert ask(profile=one, scorecard=card, contexts=(256,)).caveats == (
            "context 256 was not profiled: beyond 128, step times are those of 128",
        )

    def test_records_that_belong_together_need_no_word(
        self, ask: Ask, profile: Path, card: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert ask(profile=profile, scorecard=card).caveats == ()
        assert caplog.text == ""


class TestOnce:
    def test_the_same_question_has_the_same_place_and_the_same_answer(self, tmp_path: Path, profile: Path, card: Path) -> None:
        asked = config(profile=profile, scorecard=card)
        first = predict(asked, Store(tmp_path))
        before = (first / "record.json").read_bytes()
        copy = save_record(tmp_path / "copy", read_record(Scorecard, card))
        assert predict(config(profile=profile, scorecard=copy), Store(tmp_path)) == first
        assert (first / "record.json").read_bytes() == before

    def test_another_one_another(self, tmp_path: Path) -> None:
        asked = [config(numbers=NUMBERS | {"plain_ms": ms}, tokens_per_step={3: 2.5}) for ms in (20, 21)]
        assert len({predict(one, Store(tmp_path)) for one in asked}) == 2

    def test_it_is_json_that_everybody_reads(self, tmp_path: Path) -> None:
        def refuse(constant: str) -> None:
            raise ValueError(f"{constant} is not JSON")

        folder = predict(config(numbers=NUMBERS, acceptance=1.0), Store(tmp_path))
        json.loads((folder / "record.json").read_text(), parse_constant=refuse)

    def test_no_engine_is_asked(self, ask: Ask, plugins: Any, profile: Path, card: Path) -> None:
        ask(profile=profile, scorecard=card)
        assert plugins.loaded == []


class TestRefused:
    def test_no_baseline_in_the_profile(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        profile = save_record(tmp_path / "bare", profile_record(plain=()))
        with pytest.raises(PredictionError) as caught:
            ask(profile=profile, scorecard=card)
        assert_explains(caught.value, "no plain baseline", way_out="profile the target with `draftsmith profile`")

    def test_no_baseline_at_all(self, ask: Ask) -> None:
        with pytest.raises(PredictionError) as caught:
            ask(numbers={"draft_ms": 2}, tokens_per_step={3: 2.5})
        assert_explains(caught.value, "no plain baseline", way_out="--plain-ms")

    def test_nothing_about_the_drafts_time(self, ask: Ask) -> None:
        with pytest.raises(PredictionError) as caught:
            ask(numbers={"plain_ms": 20}, tokens_per_step={3: 2.5})
        assert_explains(caught.value, "how long the draft takes", way_out="--draft-ms")

    @pytest.mark.parametrize("name", ["plain_ms", "verify_ms", "draft_ms", "overhead_ms"])
    def test_a_time_beside_a_profile_that_has_measured_it(self, ask: Ask, profile: Path, card: Path, name: str) -> None:
        with pytest.raises(ConfigError) as caught:
            ask(profile=profile, scorecard=card, numbers={name: 2.0})
        assert_explains(caught.value, name, "beside a profile", way_out="leave it out")

    def test_a_drafts_time_beside_a_profile_of_prompt_lookup(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        changes = {"draft": "ngram", "draft_fingerprint": None, "draft_shape": None}
        profile = save_record(tmp_path / "lookup", profile_record(**changes))
        with pytest.raises(ConfigError, match="draft_ms was typed in beside a profile"):
            ask(profile=profile, scorecard=card, numbers={"draft_ms": 2.0})

    def test_memory_of_models_that_nobody_named(self, ask: Ask) -> None:
        with pytest.raises(ConfigError) as caught:
            ask(numbers=NUMBERS, tokens_per_step={3: 2.5}, memory_gb=80)
        assert_explains(caught.value, "memory needs the shapes of both models", way_out="--profile")

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"acceptance": 0.8, "tokens_per_step": {3: 2.5}},
            {"acceptance": 0.8, "scorecard": True},
            {"tokens_per_step": {3: 2.5}, "scorecard": True},
            {"acceptance": 0.0, "tokens_per_step": {3: 2.5}, "scorecard": True},
        ],
    )
    def test_acceptance_from_nowhere_or_from_two_places(self, ask: Ask, card: Path, given: dict[str, Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            ask(numbers=NUMBERS, **given | ({"scorecard": card} if "scorecard" in given else {}))
        assert_explains(caught.value, "acceptance must come from one place", way_out="give exactly one of --scorecard")

    @pytest.mark.parametrize(("lookahead", "tokens"), [(3, 0.9), (3, 4.01), (1, 2.5), (3, float("nan")), (-1, 1.0)])
    def test_tokens_per_step_that_cannot_be(self, ask: Ask, lookahead: int, tokens: float) -> None:
        with pytest.raises(ConfigError) as caught:
            ask(numbers=NUMBERS, tokens_per_step={2: 1.5, lookahead: tokens})
        assert str(lookahead) in caught.value.problem
        assert caught.value.way_out

    @pytest.mark.parametrize("tokens", [{0: 1.0}, {0: 1.0, 3: 2.5}])
    def test_a_lookahead_that_looks_nowhere(self, ask: Ask, tokens: dict[int, float]) -> None:
        with pytest.raises(ConfigError):
            ask(numbers=NUMBERS, tokens_per_step=tokens)

    def test_the_most_and_the_least_there_can_be_are_fine(self, ask: Ask) -> None:
        assert len(ask(numbers=NUMBERS, tokens_per_step={2: 1.0, 3: 4.0}).points) == 2

    def test_another_beginning(self, ask: Ask, tmp_path: Path, card: Path) -> None:
        profile = save_record(tmp_path / "later", profile_record(first_drafted=1))
        with pytest.raises(PredictionError) as caught:
            ask(profile=profile, scorecard=card)
        assert_explains(caught.value, "the scorecard is for fake", "they begin differently", way_out="--serve fake")

    @pytest.mark.parametrize(("name", "value"), [("batches", (8,)), ("batches", (1, 16))])
    def test_a_batch_size_that_was_not_profiled(self, ask: Ask, profile: Path, card: Path, name: str, value: Any) -> None:
        with pytest.raises(PredictionError) as caught:
            ask(profile=profile, scorecard=card, **{name: value})
        assert_explains(caught.value, f"batch size {value[-1]}", "from 1 to 4", way_out="profile it")

    @pytest.mark.parametrize("lookaheads", [(9,), (2, 9)])
    def test_a_lookahead_that_was_asked_for_and_not_timed(
        self, ask: Ask, tmp_path: Path, profile: Path, lookaheads: tuple[int, ...]
    ) -> None:
        card = save_record(tmp_path / "long", scorecard(overall=curve(*[1.5] * 9)))
        with pytest.raises(PredictionError) as caught:
            ask(profile=profile, scorecard=card, lookaheads=lookaheads)
        assert_explains(caught.value, 9, 4, way_out="profile")

    @pytest.mark.parametrize("lookaheads", [(5,), (2, 5)])
    def test_a_lookahead_that_was_asked_for_and_not_evaluated(
        self, ask: Ask, tmp_path: Path, card: Path, lookaheads: tuple[int, ...]
    ) -> None:
        profile = save_record(tmp_path / "long", profile_record(lookaheads=(0, 8)))
        with pytest.raises(PredictionError, match="5"):
            ask(profile=profile, scorecard=card, lookaheads=lookaheads)

    def test_a_profile_that_is_none(self, ask: Ask, card: Path, profile: Path) -> None:
        with pytest.raises(RecordError, match="is a 'scorecard' record, not a Profile"):
            ask(profile=card, scorecard=card)
        with pytest.raises(RecordError, match="is a 'profile' record, not a Scorecard"):
            ask(profile=profile, scorecard=profile)

    @pytest.mark.parametrize(
        "values",
        [
            {"acceptance": 1.2},
            {"batches": (0,)},
            {"lookaheads": (0,)},
            {"contexts": (0,)},
            {"wanted_tokens_per_second": 0},
            {"memory_gb": -1},
        ],
    )
    def test_settings_that_cannot_be(self, values: dict[str, Any]) -> None:
        (name,) = values
        with pytest.raises(ConfigError, match=name):
            config(**values)

    @pytest.mark.parametrize("name", ["plain_ms", "verify_ms", "draft_ms", "overhead_ms"])
    def test_times_that_cannot_be(self, name: str) -> None:
        with pytest.raises(ConfigError, match=name):
            config(numbers=NUMBERS | {name: -1.0})


class TestRealBatches:
    """With the trace each row's own steps go through the engine's batching rule."""

    LENGTHS = (40, 25, 12, 33, 8, 40, 19)

    @pytest.fixture
    def rows(self) -> list[TraceRow]:
        rng = np.random.default_rng(3)
        return [
            trace_row(f"p{i}", rng.integers(32, 120, n).tolist(), prompt_ids=ints(*range(5 + 3 * i)))
            for i, n in enumerate(self.LENGTHS)
        ]

    @pytest.fixture
    def evaluated(self, tmp_path: Path, engine: FakeEngine) -> Callable[..., dict[str, Path]]:
        """A trace of rows, and a scorecard by a draft that is right seven times in ten."""
        rng = np.random.default_rng(5)

        def right_often(row: TraceRow) -> DraftScore:
            argmax = np.where(rng.random(len(row.output_ids)) < 0.7, row.output_ids, 1)
            return DraftScore(argmax.astype(np.int32), row.logprobs, row.logprobs)

        engine.score_row = right_often

        def build(rows: list[TraceRow], draft: Any = None, shards: int = 1, **changes: Any) -> dict[str, Path]:
            size = -(-len(rows) // shards)
            split = [rows[low : low + size] for low in range(0, len(rows), size)]
            trace = write_trace(tmp_path / "trace", split, **{"max_new_tokens": 40} | changes)
            draft = draft or {"kind": "model", "path": str(write_model(tmp_path / "draft"))}
            values = {"trace": str(trace), "draft": draft, "lookaheads": (1, 2, 4), "engine": {"kind": "fake"}}
            asked = parse_config(EvaluateConfig, values, "the settings")
            return {"trace": trace, "scorecard": evaluate(asked, Store(tmp_path / "cards"))}

        return build

    def flat(self, tmp_path: Path, **changes: Any) -> Path:
        """Neither rows nor contexts cost anything."""
        return save_record(tmp_path / "flat", profile_record(**changes))

    @pytest.mark.parametrize("batching", [None, CONTINUOUS])
    @pytest.mark.parametrize("first", [0, 1])
    def test_one_row_at_a_time_is_the_closed_form(
        self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any, batching: Any, first: int
    ) -> None:
        records = evaluated(rows, shards=2, first_drafted=first)
        changes = {"first_drafted": first} | ({"batching": batching} if batching else {})
        asked: dict[str, Any] = {"profile": self.flat(tmp_path, **changes), "scorecard": records["scorecard"], "batches": (1,)}
        real, full = ask(**asked, trace=records["trace"]), ask(**asked)
        assert (real.replayed_batches, full.replayed_batches) == (True, False)
        for one, other in zip(real.points, full.points, strict=True):
            assert one.tokens_per_step == other.tokens_per_step
            assert one.tokens_per_second == pytest.approx(other.tokens_per_second, rel=1e-12)
            assert one.speedup == pytest.approx(other.speedup, rel=1e-12)

    def test_prompt_lookup_too(self, ask: Ask, tmp_path: Path, evaluated: Any) -> None:
        rows = [trace_row(f"p{i}", [7, 8, 9, 7, 8, 9, 7, 8, 4 + i, 7, 8]) for i in range(4)]
        records = evaluated(rows, {"kind": "ngram"})
        profile = self.flat(tmp_path, draft="ngram", draft_fingerprint=None, draft_shape=None)
        asked: dict[str, Any] = {"profile": profile, "scorecard": records["scorecard"], "batches": (1,)}
        real, full = ask(**asked, trace=records["trace"]), ask(**asked)
        assert full.points[-1].tokens_per_step > 1.2
        assert [p.tokens_per_second for p in real.points] == pytest.approx([p.tokens_per_second for p in full.points])

    def test_sampled_output_on_average(self, ask: Ask, tmp_path: Path, evaluated: Any, engine: FakeEngine) -> None:
        rows = [trace_row(f"p{i}", [50] * 40, logprobs=floats(*[math.log(0.5)] * 40)) for i in range(200)]
        log_q = floats(*[math.log(0.35)] * 40)
        engine.score_row = lambda row: DraftScore(row.output_ids, log_q, log_q)
        draft = {"kind": "model", "path": str(write_model(tmp_path / "draft")), "method": "probabilistic"}
        records = evaluated(rows, draft, sampling=Sampling(temperature=1.0))
        asked: dict[str, Any] = {"profile": self.flat(tmp_path), "scorecard": records["scorecard"], "batches": (1,)}
        real, full = ask(**asked, trace=records["trace"]), ask(**asked)
        for one, other in zip(real.points, full.points, strict=True):
            assert one.tokens_per_second == pytest.approx(other.tokens_per_second, rel=0.03)

    def test_rows_that_end_early_leave_a_batch_half_empty(
        self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any
    ) -> None:
        records = evaluated(rows)
        asked: dict[str, Any] = {"profile": self.flat(tmp_path), "scorecard": records["scorecard"], "batches": (4,)}
        real, full = ask(**asked, trace=records["trace"]), ask(**asked)
        for one, other in zip(real.points, full.points, strict=True):
            assert one.tokens_per_second < 0.9 * other.tokens_per_second

    def test_a_batch_by_hand(self, ask: Ask, tmp_path: Path, evaluated: Any, engine: FakeEngine) -> None:
        """Always right: at lookahead 2 outputs of 9 and 3 tokens take 3 steps and 1. A step is 13 ms, a plain one 10."""
        engine.score_row = lambda row: DraftScore(row.output_ids, row.logprobs, row.logprobs)
        records = evaluated([trace_row("long", [50] * 9), trace_row("short", [60] * 3)])
        found = ask(profile=self.flat(tmp_path), **records, batches=(4,), lookaheads=(2,))
        (point,) = found.points
        assert point.tokens_per_second == pytest.approx(12 / (3 * 0.013))
        assert point.speedup == pytest.approx((9 * 10) / (3 * 13))

    def test_the_last_steps_of_an_engine_that_clips_are_cheaper(
        self, ask: Ask, tmp_path: Path, evaluated: Any, engine: FakeEngine
    ) -> None:
        """Four new tokens and no more, always right at lookahead 2: three tokens in 13 ms, then one in a plain step of 10."""
        engine.score_row = lambda row: DraftScore(row.output_ids, row.logprobs, row.logprobs)
        records = evaluated([trace_row("a", [50] * 4)], max_new_tokens=4)
        clipping = Batching(admission="static", context="longest", clips_lookahead=True)
        (point,) = ask(profile=self.flat(tmp_path, batching=clipping), **records, batches=(1,), lookaheads=(2,)).points
        assert point.tokens_per_second == pytest.approx(4 / 0.023)

    @pytest.mark.parametrize(("first", "length", "context"), [(0, 20, 110), (1, 21, 111)])
    def test_the_context_is_that_of_the_rows(
        self, ask: Ask, tmp_path: Path, evaluated: Any, first: int, length: int, context: int
    ) -> None:
        """Prompts of 100 tokens, and one more if the prefill writes it, and half of what 20 steps write."""
        rows = [trace_row(f"p{i}", [50 + i] * length, prompt_ids=ints(*[1] * 100)) for i in range(3)]
        records = evaluated(rows, first_drafted=first)
        found = ask(profile=self.flat(tmp_path, contexts=(64, 1024), first_drafted=first), **records)
        assert {point.context for point in found.points} == {context}
        assert set(found.vllm_schedules) == {context}

    def test_the_baseline_has_no_draft_and_switching_off_has(
        self, ask: Ask, tmp_path: Path, evaluated: Any, engine: FakeEngine
    ) -> None:
        """Nine tokens, always right at lookahead 2: 3 steps of 15 ms, 9 plain ones of 10, or 9 of 12 with an idle draft."""

        def step(lookahead: int, batch: int, context: int) -> ProfileCell:
            return profile_cell(lookahead, batch, context, draft_ms=2.0 + lookahead)

        engine.score_row = lambda row: DraftScore(row.output_ids, row.logprobs, row.logprobs)
        profile = save_record(tmp_path / "idle", profile_record(step, batches=(1,), plain=(profile_cell(0, 1, 128),)))
        found = ask(profile=profile, **evaluated([trace_row("a", [50] * 9)]), lookaheads=(2,))
        assert found.points[0].speedup == pytest.approx(90 / 45)
        assert found.schedule[0].tokens_per_second == pytest.approx(9 / 0.045)
        assert found.schedule[0].switched_off_tokens_per_second == pytest.approx(9 / 0.108)

    def test_the_plain_throughput_is_that_of_the_same_batches(
        self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any
    ) -> None:
        found = ask(profile=self.flat(tmp_path), **evaluated(rows))
        plain = {batch: speed for batch, _, speed in found.plain_tokens_per_second}
        for point in found.points:
            assert point.tokens_per_second / point.speedup == pytest.approx(plain[point.batch])

    def test_a_row_of_one_token_from_prefill_takes_no_step(
        self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any
    ) -> None:
        records = evaluated([*rows, trace_row("one", [77])], first_drafted=1)
        changes = {"first_drafted": 1, "batching": CONTINUOUS}
        assert ask(profile=self.flat(tmp_path, **changes), **records).replayed_batches

    def test_nothing_but_prefill_is_no_traceback(self, ask: Ask, tmp_path: Path, evaluated: Any) -> None:
        """In every step some row is still being prefilled: no step is left to time."""
        rows = [trace_row("a", [70]), trace_row("b", [71, 72]), trace_row("c", [73])]
        records = evaluated(rows, first_drafted=1)
        profile = self.flat(tmp_path, first_drafted=1, batching=CONTINUOUS, batches=(1, 2))
        with pytest.raises(PredictionError):
            ask(profile=profile, **records, batches=(2,))

    def test_the_records_may_be_named_by_their_files(
        self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any
    ) -> None:
        records = {name: folder / "record.json" for name, folder in evaluated(rows).items()}
        assert ask(profile=self.flat(tmp_path) / "record.json", **records).replayed_batches

    def test_another_trace(self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any) -> None:
        records = evaluated(rows)
        other = write_trace(tmp_path / "other", [rows[:2]])
        with pytest.raises(PredictionError) as caught:
            ask(profile=self.flat(tmp_path), scorecard=records["scorecard"], trace=other)
        assert_explains(caught.value, other, "is not the trace of this scorecard", way_out="give the trace")

    @pytest.mark.parametrize("without", ["profile", "scorecard"])
    def test_a_trace_alone(self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any, without: str) -> None:
        asked: dict[str, Any] = {"profile": self.flat(tmp_path), **evaluated(rows)}
        del asked[without]
        asked |= {"numbers": NUMBERS} if without == "profile" else {"acceptance": 0.5}
        with pytest.raises(ConfigError) as caught:
            ask(**asked)
        assert_explains(caught.value, "replayed from records", way_out="give --profile and --scorecard")

    def test_a_scorecard_whose_scores_are_gone(self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any) -> None:
        records = evaluated(rows)
        for path in records["scorecard"].glob("scores-*"):
            path.unlink()
        with pytest.raises(RecordError, match="there are no scores"):
            ask(profile=self.flat(tmp_path), **records)

    def test_rows_fewer_than_were_profiled(self, ask: Ask, tmp_path: Path, rows: list[TraceRow], evaluated: Any) -> None:
        with pytest.raises(PredictionError) as caught:
            ask(profile=self.flat(tmp_path, batches=(4, 8)), **evaluated(rows))
        assert_explains(caught.value, "from 4 to 8", way_out="profile it")
