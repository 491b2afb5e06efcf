"""Batches in time: steps as replay counts them, and both batching rules on examples worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.core.errors import PredictionError
from draftsmith.core.protocols import Batching
from draftsmith.theory.acceptance import replay
from draftsmith.theory.batches import BatchRun, RowSteps, row_steps, run_batches
from draftsmith.theory.throughput import StepTable, throughput
from tests.unit.builders import profile_cell
from tests.unit.theory.test_acceptance import as_matrix

STATIC = Batching(admission="static", context="longest", clips_lookahead=False)
CLIPPING = Batching(admission="static", context="longest", clips_lookahead=True)
CONTINUOUS = Batching(admission="continuous", context="mean", clips_lookahead=False)
RULES = (STATIC, CLIPPING, CONTINUOUS)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def step(lookahead: float, rows: float, context: float) -> float:
    """Milliseconds: digits that tell where a sum came from."""
    return 1000 * lookahead + 100 * rows + context


TABLE = StepTable.from_cells(
    [
        profile_cell(k, b, c, draft_ms=1000.0 * k, verify_ms=100.0 * b + c, overhead_ms=0.0)
        for k in (0, 1, 2, 8)
        for b in (1, 8)
        for c in (1, 1000)
    ]
)


def row(first_context: int, *step_tokens: int) -> RowSteps:
    return RowSteps(first_context, np.array(step_tokens, dtype=np.int64))


def taken(rows: list[RowSteps], lookahead: int, batch: int, batching: Batching, max_new_tokens: int = 99) -> BatchRun:
    return run_batches(rows, lookahead, batch, TABLE, batching, max_new_tokens)


class TestRowSteps:
    @given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 9), st.integers(0, 8))
    @settings(max_examples=200, deadline=None)
    def test_greedy_steps_are_those_of_replay(self, hits: list[bool], lookahead: int, tail: int) -> None:
        chances = np.array(hits, dtype=np.float64)
        n = max(1, len(hits) - tail)
        found = row_steps(chances, n, lookahead, rng())
        assert found.sum() == n
        assert len(found) == replay([chances], [n], [lookahead]).steps[0, 0]

    @given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 6))
    @settings(max_examples=100, deadline=None)
    def test_so_are_those_of_a_proposer_that_is_not_asked_token_by_token(self, hits: list[bool], lookahead: int) -> None:
        n = len(hits)
        matrix = (rng(n).random((n, 6)) < 0.6).astype(np.float64)
        found = row_steps(matrix, n, lookahead, rng())
        assert len(found) == replay([matrix], [n], [lookahead]).steps[0, 0]
        token_by_token = as_matrix(np.array(hits, dtype=np.float64), n, 6)
        np.testing.assert_array_equal(
            row_steps(token_by_token, n, lookahead, rng()), row_steps(np.array(hits, dtype=np.float64), n, lookahead, rng())
        )

    def test_greedy_steps_draw_nothing_at_random(self) -> None:
        generator = rng(3)
        row_steps(np.array([1.0, 0.0, 1.0, 1.0]), 4, 2, generator)
        assert generator.random() == rng(3).random()

    @pytest.mark.parametrize("lookahead", [1, 3, 8])
    def test_on_average_sampled_steps_are_those_of_replay(self, lookahead: int) -> None:
        n = 50
        chances = rng(1).random(n + 8)
        expected = replay([chances], [n], [lookahead])
        generator = rng(2)
        drawn = np.array([len(row_steps(chances, n, lookahead, generator)) for _ in range(2000)])
        deviation = np.sqrt(expected.variance[0, 0])
        assert abs(drawn.mean() - expected.steps[0, 0]) < 4 * deviation / np.sqrt(len(drawn))
        assert drawn.std() == pytest.approx(deviation, rel=0.1)

    def test_a_step_emits_at_most_lookahead_and_one_and_never_past_the_end(self) -> None:
        for seed in range(50):
            found = row_steps(rng(seed).random(40), 33, 4, rng(seed))
            assert found.sum() == 33
            assert found.min() >= 1
            assert found.max() <= 5

    def test_by_hand(self) -> None:
        """Right, right, wrong, right, right, right, right: two and the target's own, then two and one, then the rest."""
        hits = np.array([1, 1, 0, 1, 1, 1, 1], dtype=np.float64)
        assert row_steps(hits, 7, 2, rng()).tolist() == [3, 3, 1]
        assert row_steps(hits, 7, 0, rng()).tolist() == [1] * 7
        assert row_steps(hits, 7, 9, rng()).tolist() == [3, 4]

    def test_the_tail_is_looked_at_and_not_written(self) -> None:
        assert row_steps(np.ones(12), 4, 5, rng()).tolist() == [4]

    def test_no_tokens_no_steps(self) -> None:
        assert row_steps(np.zeros(0), 0, 3, rng()).tolist() == []


class TestOneRowAtATime:
    @pytest.mark.parametrize("batching", [STATIC, CONTINUOUS])
    @pytest.mark.parametrize("lookahead", [0, 1, 4])
    def test_it_takes_the_sum_of_its_steps(self, batching: Batching, lookahead: int) -> None:
        rows = [
            row(int(first), *row_steps((rng(i).random(60) < 0.7).astype(float), 60, lookahead, rng()))
            for i, first in enumerate((30, 7, 200))
        ]
        expected = 0.0
        for one in rows:
            contexts = one.first_context + np.concatenate([[0], one.step_tokens.cumsum()[:-1]])
            expected += float(TABLE.step_ms(lookahead, 1, contexts).sum())
        found = taken(rows, lookahead, 1, batching)
        assert (found.tokens, found.steps) == (180, sum(len(one.step_tokens) for one in rows))
        assert found.seconds == pytest.approx(expected / 1000)

    @pytest.mark.parametrize("batching", [STATIC, CONTINUOUS])
    def test_where_contexts_cost_nothing_it_is_tokens_per_step_over_a_steps_time(self, batching: Batching) -> None:
        table = StepTable.from_numbers(plain_ms=20, verify_ms=22, draft_ms=2, overhead_ms=1, most=4)
        hits = [(rng(seed).random(50) < 0.6).astype(float) for seed in range(20)]
        steps = [row_steps(one, 50, 4, rng()) for one in hits]
        found = run_batches([RowSteps(9, one) for one in steps], 4, 1, table, batching, 50)
        tokens_per_step = 20 * 50 / replay(hits, [50] * 20, [4]).steps.sum()
        assert found.tokens_per_second == pytest.approx(float(throughput(tokens_per_step, 31.0)))


class TestStatic:
    ROWS = (row(10, 2, 1, 1), row(12, 3), row(5, 1, 1))

    def test_by_hand(self) -> None:
        """The short prompts 5 and 10 first, until both are done; then 12 alone. The longest row's context counts."""
        found = taken([*self.ROWS], 2, 2, STATIC)
        steps = [step(2, 2, 10), step(2, 2, 12), step(2, 1, 13), step(2, 1, 12)]
        assert found == BatchRun(tokens=9, seconds=pytest.approx(sum(steps) / 1000), steps=4)
        assert found.tokens_per_second == pytest.approx(9000 / sum(steps))

    def test_the_mean_context(self) -> None:
        found = taken([*self.ROWS], 2, 2, STATIC.model_copy(update={"context": "mean"}))
        steps = [step(2, 2, 7.5), step(2, 2, 9), step(2, 1, 13), step(2, 1, 12)]
        assert found.seconds == pytest.approx(sum(steps) / 1000)

    def test_the_last_steps_propose_no_more_than_the_limit_leaves(self) -> None:
        """Four new tokens: the first row has one left in its third step, so nothing is proposed. The row with most left
        decides for its whole batch."""
        found = taken([*self.ROWS], 2, 2, CLIPPING, max_new_tokens=4)
        steps = [step(2, 2, 10), step(2, 2, 12), step(0, 1, 13), step(2, 1, 12)]
        assert found.seconds == pytest.approx(sum(steps) / 1000)

    def test_a_lookahead_above_the_limit(self) -> None:
        found = taken([row(5, 3)], 8, 1, CLIPPING, max_new_tokens=3)
        assert found.seconds == pytest.approx(step(2, 1, 5) / 1000)

    def test_all_at_once(self) -> None:
        found = taken([*self.ROWS], 1, 8, STATIC)
        steps = [step(1, 3, 12), step(1, 2, 12), step(1, 1, 13)]
        assert found == BatchRun(tokens=9, seconds=pytest.approx(sum(steps) / 1000), steps=3)


class TestContinuous:
    def test_by_hand(self) -> None:
        """10 and 12 begin. 12 ends with its first step, 5 takes its place: a step with a prefill in it, which counts nowhere.
        Then 10 at 13 tokens with 5, and 5 alone."""
        found = taken([row(10, 2, 1, 1), row(12, 3), row(5, 1, 1)], 2, 2, CONTINUOUS)
        steps = [step(2, 2, 11), step(2, 2, 9), step(2, 1, 6)]
        assert found == BatchRun(tokens=5 + 2 + 1, seconds=pytest.approx(sum(steps) / 1000), steps=3)

    def test_the_longest_context(self) -> None:
        longest = CONTINUOUS.model_copy(update={"context": "longest"})
        found = taken([row(10, 2, 1, 1), row(12, 3), row(5, 1, 1)], 2, 2, longest)
        steps = [step(2, 2, 12), step(2, 2, 13), step(2, 1, 6)]
        assert found.seconds == pytest.approx(sum(steps) / 1000)

    def test_rows_come_in_the_order_of_their_prompts(self) -> None:
        first, second = row(50, 1, 1, 1), row(10, 1)
        assert taken([first, second], 0, 1, CONTINUOUS) == taken([second, first], 0, 1, CONTINUOUS)
        together = taken([first, second, row(7, 1, 1)], 0, 2, CONTINUOUS)
        steps = [step(0, 2, 30), step(0, 2, (52 + 7) / 2), step(0, 1, 8)]
        assert together.seconds == pytest.approx(sum(steps) / 1000)

    def test_room_for_all(self) -> None:
        found = taken([row(10, 2, 1), row(20, 1)], 1, 8, CONTINUOUS)
        assert found == BatchRun(tokens=4, seconds=pytest.approx((step(1, 2, 15) + step(1, 1, 12)) / 1000), steps=2)


@pytest.mark.parametrize("batching", RULES)
class TestBoth:
    def test_every_token_is_counted_once_if_nothing_is_prefilled_meanwhile(self, batching: Batching) -> None:
        rows = [row(9, *row_steps(rng(seed).random(30), 30, 2, rng(seed))) for seed in range(8)]
        found = taken(rows, 2, 8, batching, max_new_tokens=30)
        assert found.tokens == 240
        assert found.steps == max(len(one.step_tokens) for one in rows)

    def test_a_row_without_steps_takes_no_time(self, batching: Batching) -> None:
        """Its prefill wrote all there was."""
        some = [row(10, 2, 1), row(20, 1)]
        assert taken([*some, row(30)], 1, 8, batching) == taken(some, 1, 8, batching)

    @pytest.mark.parametrize("rows", [[], [row(3)], [row(3), row(4)]])
    def test_nothing_to_do(self, batching: Batching, rows: list[RowSteps]) -> None:
        assert taken(rows, 1, 2, batching) == BatchRun(0, 0.0, 0)

    def test_larger_batches_are_faster_where_a_row_more_costs_little(self, batching: Batching) -> None:
        rows = [row(9, *row_steps(rng(seed).random(30), 30, 2, rng(seed))) for seed in range(16)]
        speeds = [taken(rows, 2, batch, batching, max_new_tokens=30).tokens_per_second for batch in (1, 2, 4, 8)]
        assert speeds == sorted(speeds)

    def test_rows_get_fewer_towards_the_end_and_those_steps_must_have_been_profiled(self, batching: Batching) -> None:
        narrow = StepTable.from_cells([profile_cell(k, b, 1) for k in (0, 8) for b in (4, 8)])
        rows = [row(9, *[1] * length) for length in (1, 2, 3, 4)]
        with pytest.raises(PredictionError, match="batch size 1 was not profiled"):
            run_batches(rows, 2, 4, narrow, batching, 99)
