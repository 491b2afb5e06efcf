"""The fast recurrences against the definition, against brute force, and against a simulated decoder."""

import itertools
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.theory.acceptance import AcceptanceSums, curve, replay

LOOKAHEADS = (1, 2, 3, 5, 8)


def as_matrix(a: np.ndarray, n: int, widest: int) -> np.ndarray:
    """The general form of a token-by-token draft: A[j, m] = a[j + m]."""
    padded = np.concatenate([a, np.zeros(n + widest)])
    return np.stack([padded[m : m + n] for m in range(widest)], axis=1)


def simulate(a: np.ndarray, n: int, k: int, rng: np.random.Generator) -> int:
    """One live run: the number of steps to write n tokens."""
    position = steps = 0
    while position < n:
        steps += 1
        accepted = 0
        while accepted < k and position + accepted < len(a) and rng.random() < a[position + accepted]:
            accepted += 1
        position += accepted + 1
    return steps


def enumerate_steps(a: np.ndarray, n: int, k: int) -> tuple[float, float]:
    """Mean and variance of the steps over all outcomes of n coin flips, each token flipped once."""
    mean = second = 0.0
    for flips in itertools.product((0, 1), repeat=n):
        chance = float(np.prod(np.where(flips, a[:n], 1 - a[:n])))
        position = steps = 0
        while position < n:
            steps += 1
            run = 0
            while run < k and position + run < n and flips[position + run]:
                run += 1
            position += run + 1
        mean += chance * steps
        second += chance * steps**2
    return mean, second - mean**2


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, 20])
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_equals_brute_force_over_all_outcomes(n: int, k: int) -> None:
    a = np.random.default_rng(n * 31 + k).random(n)
    result = replay([a], [n], [k])
    mean, variance = enumerate_steps(a, n, k)
    assert result.steps[0, 0] == pytest.approx(mean, rel=1e-12)
    assert result.variance[0, 0] == pytest.approx(variance, abs=1e-10)


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=40), min_size=1, max_size=8),
    st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
)
@settings(max_examples=150, deadline=None)
def test_fast_form_equals_general_form(rows: list[list[float]], lookaheads: list[int]) -> None:
    chances = [np.array(row) for row in rows]
    lengths = [len(row) for row in rows]
    widest = max(lookaheads)
    fast = replay(chances, lengths, lookaheads)
    general = replay([as_matrix(a, n, widest) for a, n in zip(chances, lengths, strict=True)], lengths, lookaheads)
    np.testing.assert_allclose(fast.steps, general.steps, rtol=1e-9)
    np.testing.assert_allclose(fast.variance, general.variance, atol=1e-7)
    np.testing.assert_allclose(fast.sums.accepted_KM, general.sums.accepted_KM, atol=1e-9)
    np.testing.assert_allclose(fast.sums.proposed_KM, general.sums.proposed_KM, atol=1e-9)
    np.testing.assert_allclose(fast.sums.engine_accepted_KM, general.sums.engine_accepted_KM, atol=1e-9)


def test_greedy_steps_are_whole_and_equal_a_live_walk() -> None:
    rng = np.random.default_rng(5)
    rows = [(rng.random(n) < 0.6).astype(float) for n in rng.integers(1, 90, size=50)]
    result = replay(rows, [len(a) for a in rows], LOOKAHEADS)
    for i, a in enumerate(rows):
        for at, k in enumerate(LOOKAHEADS):
            assert result.steps[i, at] == simulate(a, len(a), k, rng)
    np.testing.assert_array_equal(result.variance, 0.0)


def test_mean_and_variance_match_simulation() -> None:
    rng = np.random.default_rng(11)
    a = rng.random(60)
    result = replay([a], [60], LOOKAHEADS)
    for at, k in enumerate(LOOKAHEADS):
        draws = np.array([simulate(a, 60, k, rng) for _ in range(4000)])
        error = draws.std() / np.sqrt(len(draws))
        assert abs(draws.mean() - result.steps[0, at]) < 4 * error
        assert draws.var() == pytest.approx(result.variance[0, at], rel=0.12)


def test_every_step_emits_one_more_than_it_accepts() -> None:
    rng = np.random.default_rng(3)
    rows = [rng.random(n) for n in (1, 7, 30, 64)]
    sums = replay(rows, [len(a) for a in rows], LOOKAHEADS).sums
    np.testing.assert_allclose(sums.accepted_KM.sum(axis=1) + sums.steps_K, sums.tokens)
    for point in curve(sums).points:
        assert point.accepted_per_step + 1 == pytest.approx(point.tokens_per_step)


def test_the_tail_counts_what_an_engine_accepts_and_throws_away() -> None:
    n, k = 10, 4
    a = np.ones(n + k)
    with_tail = replay([a], [n], [k]).sums
    without = replay([a[:n]], [n], [k]).sums
    assert with_tail.has_tail
    assert not without.has_tail
    assert with_tail.steps_K[0] == without.steps_K[0] == 2
    assert with_tail.engine_accepted_KM.sum() == 2 * k
    assert curve(without).points[0].engine_accepted_by_position is None


def test_whether_a_matrix_reaches_past_the_end_must_be_said() -> None:
    n, k = 10, 4
    whole = as_matrix(np.ones(n + k), n, k)
    assert curve(replay([whole], [n], [k]).sums).points[0].engine_accepted_by_position is None
    known = curve(replay([whole], [n], [k], has_tail=True).sums).points[0]
    assert known.engine_accepted_by_position == (2.0,) * k
    assert curve(replay([np.ones(n + k)], [n], [k], has_tail=False).sums).points[0].engine_accepted_by_position is None


def test_one_prompt_has_no_spread() -> None:
    one, two = (curve(replay([np.ones(4)] * count, [4] * count, [1]).sums).points[0] for count in (1, 2))
    assert one.tokens_per_step_error is None
    assert two.tokens_per_step_error == 0


def test_sums_add_up_over_shards() -> None:
    rng = np.random.default_rng(8)
    rows = [rng.random(n) for n in rng.integers(2, 50, size=20)]
    lengths = [len(a) for a in rows]
    whole = replay(rows, lengths, LOOKAHEADS).sums
    parts = AcceptanceSums.empty(LOOKAHEADS, has_tail=True)
    for low in range(0, 20, 6):
        parts = parts + replay(rows[low : low + 6], lengths[low : low + 6], LOOKAHEADS).sums
    one, two = curve(whole), curve(parts)
    assert one.num_prompts == two.num_prompts == 20
    for p, q in zip(one.points, two.points, strict=True):
        assert p.tokens_per_step == pytest.approx(q.tokens_per_step)
        assert p.tokens_per_step_error == pytest.approx(q.tokens_per_step_error)


def test_bounds_that_everyone_knows() -> None:
    always, never = np.ones(90), np.zeros(90)
    for k in LOOKAHEADS:
        assert replay([always], [90], [k]).steps[0, 0] == -(-90 // (k + 1))
        assert replay([never], [90], [k]).steps[0, 0] == 90


def test_the_error_is_that_of_a_ratio_over_prompts() -> None:
    rng = np.random.default_rng(2)
    spread = []
    for _ in range(300):
        rows = [np.full(40, rng.random()) for _ in range(30)]
        spread.append(curve(replay(rows, [40] * 30, [3]).sums).points[0])
    ratios = np.array([point.tokens_per_step for point in spread])
    claimed = np.mean([point.tokens_per_step_error for point in spread])
    assert claimed == pytest.approx(ratios.std(), rel=0.15)


def test_million_tokens_take_about_a_second_and_little_memory() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.random(200, dtype=np.float32) for _ in range(5000)]
    tracemalloc.start()
    began = time.perf_counter()
    replay(rows, [200] * 5000, range(1, 17))
    seconds = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 4.0
    assert peak < 400e6
