"""Throughput: the grid and what lies between its points, formulas at their ends, and every inverse by going there and back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.core.errors import PredictionError
from draftsmith.core.records import ProfileCell
from draftsmith.theory.formulas import leviathan_throughput, leviathan_tokens_per_step, paper_throughput
from draftsmith.theory.inverses import parity_draft_ms, parity_tokens_per_step, required_tokens_per_step
from draftsmith.theory.throughput import PHASES, StepTable, throughput
from tests.unit.builders import assert_explains, profile_cell

K, B, C = (0, 1, 3, 8), (1, 4, 16), (128, 1024, 4096)


def multilinear(k: Any, b: Any, c: Any) -> Any:
    """Linear in each of its arguments, not in all of them together."""
    return 10 + 0.5 * k + 0.2 * b + 0.001 * c + 0.03 * k * b + 0.0002 * b * c + 0.0001 * k * c + 0.00001 * k * b * c


def cells(contexts: tuple[int, ...] = C) -> list[ProfileCell]:
    """Phases that are parts of that function."""
    parts = {"draft_ms": 0.3, "verify_ms": 0.6, "overhead_ms": 0.1}
    return [
        profile_cell(k, b, c, **{name: part * multilinear(k, b, c) for name, part in parts.items()}, error=0.001 * (k + b))
        for k in K
        for b in B
        for c in contexts
    ]


def random_table(rng: np.random.Generator) -> StepTable:
    """Any step times at all, between 0.1 and 100 ms a phase."""
    axes = [tuple(sorted(rng.choice(np.arange(1, 40), size=int(rng.integers(1, 4)), replace=False).tolist())) for _ in range(2)]
    lookaheads = (0, *sorted(rng.choice(np.arange(1, 20), size=int(rng.integers(1, 5)), replace=False).tolist()))
    size = (len(lookaheads), len(axes[0]), len(axes[1]))
    phases = {name: 10 ** rng.uniform(-1, 2, size=size) for name in PHASES}
    return StepTable(lookaheads, *axes, phases, np.zeros(size))


class TestGrid:
    def test_what_was_measured_is_found_again(self) -> None:
        table = StepTable.from_cells(cells()[::-1])
        assert (table.lookaheads, table.batches, table.contexts) == (K, B, C)
        for cell in cells():
            place = (cell.lookahead, cell.batch, cell.context)
            assert table.step_ms(*place) == pytest.approx(cell.step_ms, rel=1e-12)
            assert table.relative_error(*place) == pytest.approx(cell.error, rel=1e-12)
            for name in PHASES:
                assert table.phase_ms(name, *place) == pytest.approx(getattr(cell, f"{name}_ms"), rel=1e-12)

    @given(st.floats(0, 8), st.floats(1, 16), st.floats(128, 4096))
    @settings(max_examples=200, deadline=None)
    def test_a_multilinear_function_is_met_everywhere(self, k: float, b: float, c: float) -> None:
        table = StepTable.from_cells(cells())
        assert table.step_ms(k, b, c) == pytest.approx(multilinear(k, b, c), rel=1e-9)

    def test_between_two_points_it_stays_between_their_values(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(100):
            table = random_table(rng)
            place = (
                axis[0] + rng.random(20) * (axis[-1] - axis[0]) for axis in (table.lookaheads, table.batches, table.contexts)
            )
            found = table.phase_ms("draft", *place)
            assert found.min() >= table.phases_KBC["draft"].min() * (1 - 1e-12)
            assert found.max() <= table.phases_KBC["draft"].max() * (1 + 1e-12)

    def test_arguments_broadcast(self) -> None:
        table = StepTable.from_cells(cells())
        k, b, c = np.array([0, 2, 5])[:, None, None], np.array([1, 7])[None, :, None], np.array([200.0, 300.0, 4000.0, 9000.0])
        found = table.step_ms(k, b, c)
        assert found.shape == (3, 2, 4)
        np.testing.assert_allclose(found, multilinear(k, b, c))
        assert table.step_ms(k, 1, 128).shape == (3, 1, 1)

    @pytest.mark.parametrize("empty", [np.zeros(0), []])
    def test_no_question_no_answer(self, empty: Any) -> None:
        assert StepTable.from_cells(cells()).step_ms(3, 1, empty).shape == (0,)

    def test_one_context_stands_for_all(self) -> None:
        table = StepTable.from_cells(cells(contexts=(128,)))
        assert table.step_ms(3, 4, 128) == table.step_ms(3, 4, 9999) == table.step_ms(3, 4, 1)

    def test_longer_contexts_go_on_in_a_straight_line(self) -> None:
        table = StepTable.from_cells(cells())
        assert table.step_ms(3, 4, 32_768) == pytest.approx(multilinear(3, 4, 32_768))

    def test_shorter_contexts_cost_what_the_shortest_measured_does(self) -> None:
        table = StepTable.from_cells(cells())
        assert table.step_ms(3, 4, 1) == table.step_ms(3, 4, 128)

    @pytest.mark.parametrize("context", [2048, 131_072])
    def test_a_longer_context_never_costs_less_than_the_longest_measured(self, context: int) -> None:
        """Two contexts that cost the same, within the noise: a straight line through them would end below zero."""
        measured = {128: 20.1, 1024: 19.9}
        table = StepTable.from_cells([profile_cell(0, 1, c, verify_ms=ms) for c, ms in measured.items()])
        assert table.step_ms(0, 1, context) >= 19.9

    @pytest.mark.parametrize(
        ("place", "named"),
        [
            ((9, 1, 128), ("lookahead 9", "from 0 to 8")),
            ((-1, 1, 128), ("lookahead -1", "from 0 to 8")),
            ((3, 17, 128), ("batch size 17", "from 1 to 16")),
            ((3, 0, 128), ("batch size 0", "from 1 to 16")),
            ((np.array([1, 30]), 1, 128), ("lookahead 30",)),
        ],
    )
    def test_outside_the_grid_nothing_is_known(self, place: tuple[Any, ...], named: tuple[str, ...]) -> None:
        with pytest.raises(PredictionError) as caught:
            StepTable.from_cells(cells()).step_ms(*place)
        assert_explains(caught.value, *named, "was not profiled", way_out="profile it")

    def test_a_grid_with_a_hole(self) -> None:
        with pytest.raises(PredictionError) as caught:
            StepTable.from_cells(cells()[1:])
        assert_explains(caught.value, "35 cells", "make 36", way_out="profile every combination")

    def test_a_cell_that_is_there_twice_does_not_hide_the_hole(self) -> None:
        with pytest.raises(PredictionError):
            StepTable.from_cells([*cells()[1:], cells()[1]])


class TestNumbers:
    def test_a_plain_step_has_no_draft_and_no_overhead(self) -> None:
        table = StepTable.from_numbers(plain_ms=20, verify_ms=25, draft_ms=2, overhead_ms=1, most=5)
        assert table.step_ms(0, 1, 0) == 20
        assert [table.phase_ms(name, 3, 1, 0) for name in PHASES] == [6, 25, 1]
        np.testing.assert_array_equal(table.step_ms(np.arange(6), 1, 777), [20, 28, 30, 32, 34, 36])
        assert table.relative_error(3, 1, 0) == 0

    def test_of_one_row_only(self) -> None:
        with pytest.raises(PredictionError, match="batch size 2 was not profiled"):
            StepTable.from_numbers(20, 25, 2, 1, 5).step_ms(1, 2, 0)

    def test_another_draft_in_the_same_steps(self) -> None:
        before = StepTable.from_cells(cells())
        table = before.with_draft_ms(1.5)
        assert table.phase_ms("draft", 8, 16, 1024) == 12.0
        assert table.phase_ms("draft", 2, 5, 555) == pytest.approx(3.0)
        for name in ("verify", "overhead"):
            assert table.phase_ms(name, 2, 5, 555) == before.phase_ms(name, 2, 5, 555)
        assert before.phase_ms("draft", 8, 16, 1024) == pytest.approx(0.3 * multilinear(8, 16, 1024))


class TestFormulas:
    def test_throughput_by_hand(self) -> None:
        assert throughput(2.5, 20.0) == 125.0
        assert throughput(2.5, 20.0, batch=8) == 1000.0

    def test_a_step_emits_a_token_at_least(self) -> None:
        assert throughput(0.5, 20.0) == throughput(1.0, 20.0) == 50.0
        assert paper_throughput(0.5, 15.0, 5.0) == 50.0

    def test_without_overhead_ours_is_the_papers(self) -> None:
        assert paper_throughput(2.5, 15.0, 5.0) == throughput(2.5, 20.0)

    @pytest.mark.parametrize("lookahead", [0, 1, 4, 20])
    def test_leviathan_at_the_ends(self, lookahead: int) -> None:
        assert leviathan_tokens_per_step(0.0, lookahead) == 1
        assert leviathan_tokens_per_step(1.0, lookahead) == lookahead + 1
        assert leviathan_tokens_per_step(1 - 1e-9, lookahead) == pytest.approx(lookahead + 1, rel=1e-6)

    @pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.8])
    def test_leviathan_is_a_geometric_series(self, acceptance: float) -> None:
        for k in range(8):
            assert leviathan_tokens_per_step(acceptance, k) == pytest.approx(sum(acceptance**i for i in range(k + 1)))

    def test_leviathan_over_arrays(self) -> None:
        found = leviathan_tokens_per_step(np.array([0.0, 0.5, 1.0])[:, None], np.array([1, 3]))
        np.testing.assert_allclose(found, [[1, 1], [1.5, 1.875], [2, 4]])

    def test_a_draft_that_costs_nothing_gains_what_it_proposes_well(self) -> None:
        assert leviathan_throughput(0.5, 3, plain_ms=20.0, draft_ms=0.0) == pytest.approx(50 * 1.875)
        assert leviathan_throughput(0.5, 3, plain_ms=20.0, draft_ms=2.0) == pytest.approx(50 * 1.875 / 1.3)

    def test_leviathan_is_ours_where_verification_is_a_plain_step(self) -> None:
        table = StepTable.from_numbers(20, 20, 2, 0, 8)
        for k in range(1, 9):
            ours = throughput(leviathan_tokens_per_step(0.7, k), table.step_ms(k, 1, 0))
            assert leviathan_throughput(0.7, k, 20, 2) == pytest.approx(float(ours))


def random_places(count: int = 1000) -> Any:
    """A step of a table of its own each time: lookahead, batch size, its phases, and a generator for more."""
    rng = np.random.default_rng(42)
    for _ in range(count):
        table = random_table(rng)
        k = int(rng.integers(1, table.lookaheads[-1] + 1))
        place = (k, *(int(rng.integers(axis[0], axis[-1] + 1)) for axis in (table.batches, table.contexts)))
        phases = {name: float(table.phase_ms(name, *place)) for name in PHASES}
        yield k, place[1], float(table.step_ms(*place)), phases, rng


class TestInverses:
    def test_required_tokens_per_step_give_what_was_wished_for(self) -> None:
        """Or there is none: even the most that a lookahead can give is too slow, or even the least is too fast."""
        answered = 0
        for k, batch, step_ms, _, rng in random_places():
            wanted = float(throughput(1.0, step_ms, batch)) * float(rng.uniform(0.5, 1.5 * (k + 1)))
            answer = required_tokens_per_step(wanted, step_ms, k, batch)
            if answer.value is not None:
                answered += 1
                assert answer.reason == ""
                assert 1 <= answer.value <= k + 1
                assert throughput(answer.value, step_ms, batch) == pytest.approx(wanted, rel=1e-12)
            elif throughput(1.0, step_ms, batch) > wanted:
                assert "even one token per step gives more" in answer.reason
            else:
                assert throughput(k + 1, step_ms, batch) < wanted
                assert f"lookahead {k} gives {k + 1} at most" in answer.reason
        assert 300 < answered < 950

    def test_a_step_that_emits_the_least_or_the_most_there_is_is_no_riddle(self) -> None:
        """Rounding must not turn a draft that is always right, or always wrong, into one that cannot be."""
        for k, batch, step_ms, _, _ in random_places():
            for tokens in (1.0, k + 1.0):
                wanted = float(throughput(tokens, step_ms, batch))
                assert required_tokens_per_step(wanted, step_ms, k, batch).value == pytest.approx(tokens)

    def test_at_parity_two_drafts_are_equally_fast(self) -> None:
        answered = 0
        for k, _, step_ms, _, rng in random_places():
            other_step, other_tokens = float(10 ** rng.uniform(0, 2)), float(rng.uniform(1, 6))
            answer = parity_tokens_per_step(step_ms, k, other_tokens, other_step)
            theirs = float(throughput(other_tokens, other_step))
            if answer.value is not None:
                answered += 1
                assert throughput(answer.value, step_ms) == pytest.approx(theirs, rel=1e-12)
            else:
                assert throughput(k + 1, step_ms) < theirs or throughput(1, step_ms) > theirs
                assert answer.reason
        assert 200 < answered < 950

    def test_a_draft_as_slow_as_allowed_gives_what_was_wished_for(self) -> None:
        answered = 0
        for k, batch, step_ms, phases, rng in random_places():
            tokens = float(rng.uniform(0.5, k + 1))
            wanted = float(throughput(tokens, step_ms, batch)) * float(rng.uniform(0.5, 4))
            answer = parity_draft_ms(tokens, wanted, phases["verify"], phases["overhead"], batch)
            rest = phases["verify"] + phases["overhead"]
            if answer.value is not None:
                answered += 1
                assert answer.value >= 0
                assert throughput(tokens, rest + answer.value, batch) == pytest.approx(wanted, rel=1e-9)
            else:
                assert throughput(tokens, rest, batch) < wanted  # even if drafting cost nothing
                short = rest - 1000 * batch * max(tokens, 1) / wanted
                assert f"verification alone is {short:.2f} ms too slow" in answer.reason
        assert 300 < answered < 950

    def test_the_draft_there_is_is_its_own_parity(self) -> None:
        for k, batch, step_ms, phases, rng in random_places(200):
            tokens = float(rng.uniform(1, k + 1))
            wanted = float(throughput(tokens, step_ms, batch))
            answer = parity_draft_ms(tokens, wanted, phases["verify"], phases["overhead"], batch)
            assert answer.value == pytest.approx(phases["draft"], rel=1e-6, abs=1e-9)

    def test_plain_decoding_by_hand(self) -> None:
        """A step of 35 ms against a plain one of 20: 1.75 tokens; 2.5 tokens allow 50 ms, of which 26 are taken."""
        assert parity_tokens_per_step(35.0, 3, 1.0, 20.0).value == pytest.approx(1.75)
        assert parity_draft_ms(2.5, 50.0, verify_ms=25.0, overhead_ms=1.0).value == pytest.approx(24.0)
        assert parity_tokens_per_step(100.0, 3, 1.0, 20.0).value is None
