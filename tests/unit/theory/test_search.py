"""The search: every legal shape and no other, ranked as if each had been predicted by itself."""

import time

import numpy as np
import pytest

from draftsmith.core.errors import PlanError
from draftsmith.core.records import LatencyModel
from draftsmith.theory.latency import TERMS, predict_ms, shape_arrays
from draftsmith.theory.law import AcceptanceLaw, fit_law
from draftsmith.theory.search import Bounds, Traffic, legal_shapes, pareto, rank
from draftsmith.theory.throughput import StepTable
from tests.unit.builders import shape
from tests.unit.theory.test_law import PROBES

SOURCE = shape(layers=6, heads=4, kv_heads=2, head_size=64, hidden=256, intermediate=512, vocabulary=2000, tied=True)
LATENCY = LatencyModel(
    dtype="bfloat16", coefficients=dict.fromkeys(TERMS, 1.0), most_tokens=8, num_shapes=12, unseen_error_median=0.02,
    unseen_error_worst=0.05, unseen_error_rms=0.03,
)  # fmt: skip
STEPS = StepTable.from_numbers(plain_ms=30.0, verify_ms=32.0, draft_ms=1.0, overhead_ms=2.0, most=8)


def law() -> AcceptanceLaw:
    return fit_law(SOURCE, PROBES)


def test_every_shape_that_can_be_cut_and_loaded() -> None:
    found = legal_shapes(SOURCE, "any", Bounds(), "bfloat16")
    sizes = set(zip(found.layers, found.heads, found.kv_heads, found.hidden, found.intermediate, strict=True))
    assert len(sizes) == len(found.layers) == 6 * 4 * 4 * 8
    assert {(heads, kv) for _, heads, kv, _, _ in sizes} == {(1, 1), (2, 1), (2, 2), (4, 2)}
    assert (6, 4, 2, 256, 512) in sizes


def test_rules_of_families_and_of_tensor_parallel() -> None:
    fixed = legal_shapes(SOURCE, "heads x head size", Bounds(), "bfloat16")
    assert (fixed.hidden == fixed.heads * 64).all()
    multiple = legal_shapes(SOURCE, "multiple of heads", Bounds(), "bfloat16")
    assert (multiple.hidden % multiple.heads == 0).all()
    split = legal_shapes(SOURCE, "any", Bounds(tensor_parallel=2), "bfloat16")
    assert (split.heads % 2 == 0).all()
    assert (split.intermediate % 2 == 0).all()


def test_limits() -> None:
    everything = legal_shapes(SOURCE, "any", Bounds(), "bfloat16")
    small = legal_shapes(SOURCE, "any", Bounds(most_parameters=700_000), "bfloat16")
    assert 0 < len(small.layers) < len(everything.layers)
    assert len(legal_shapes(SOURCE, "any", Bounds(most_bytes=1_400_000), "bfloat16").layers) == len(small.layers)
    shallow = legal_shapes(SOURCE, "any", Bounds(most_layers=2), "bfloat16")
    assert set(shallow.layers) == {1, 2}
    assert len(legal_shapes(SOURCE, "any", Bounds(most_layers=99), "bfloat16").layers) == len(everything.layers)
    with pytest.raises(PlanError, match="no shape that can be cut"):
        legal_shapes(SOURCE, "any", Bounds(most_parameters=10), "bfloat16")


def test_a_candidate_gets_what_it_would_get_alone() -> None:
    shapes = legal_shapes(SOURCE, "any", Bounds(), "bfloat16")
    found = rank(shapes, SOURCE, LATENCY, law(), 1e6, STEPS, Traffic({1: 1.0}, 0), (1, 2, 4, 8))
    place = int(found.tokens_per_second.argmax())
    best = found.shape(place, SOURCE)
    draft = float(predict_ms(LATENCY, shape_arrays([best]), np.array([1.0]), np.array([0.0]))[0])
    logit, _ = law().logit(shape_arrays([best]), 1e6)
    per_step = law().tokens_per_step(logit, (1, 2, 4, 8))[:, 0]
    speeds = [1000 * per_step[at] / (k * draft + 34.0) for at, k in enumerate((1, 2, 4, 8))]
    assert found.tokens_per_second[place] == pytest.approx(max(speeds))
    assert found.lookahead[place] == (1, 2, 4, 8)[int(np.argmax(speeds))]
    assert found.parameters[place] == best.parameters


def test_shares_of_batch_sizes_are_shares_of_tokens() -> None:
    shapes = shape_arrays([SOURCE])
    table = StepTable((0, 1), (1, 4), (0,), {n: np.full((2, 2, 1), v) for n, v in (("draft", 1.0), ("verify", 30.0), ("overhead", 2.0))}, np.zeros((2, 2, 1)))  # fmt: skip  # noqa: E501
    speeds = [rank(shapes, SOURCE, LATENCY, law(), 1e6, table, Traffic({b: 1.0}, 0), (1,)).tokens_per_second[0] for b in (1, 4)]
    both = rank(shapes, SOURCE, LATENCY, law(), 1e6, table, Traffic({1: 0.25, 4: 0.75}, 0), (1,)).tokens_per_second[0]
    assert both == pytest.approx(1 / (0.25 / speeds[0] + 0.75 / speeds[1]))


def test_fewer_rows_cost_acceptance_and_save_time() -> None:
    shapes = legal_shapes(SOURCE, "any", Bounds(), "bfloat16", rows=(500,))
    found = rank(shapes, SOURCE, LATENCY, law(), 1e6, STEPS, Traffic({1: 1.0}, 0), (4,), {500: 0.9, 2000: 1.0})
    few, all_ = (np.flatnonzero(shapes.vocabulary == size) for size in (500, 2000))
    assert len(few) == len(all_)
    assert (found.tokens_per_step[few] < found.tokens_per_step[all_]).all()
    assert (found.draft_ms[few] < found.draft_ms[all_]).all()
    assert (found.parameters[few] == found.parameters[all_] + 500 * shapes.hidden[few]).all()  # no longer tied


def test_nobody_beats_the_front_in_both() -> None:
    shapes = legal_shapes(SOURCE, "any", Bounds(), "bfloat16")
    found = rank(shapes, SOURCE, LATENCY, law(), 1e6, STEPS, Traffic({1: 1.0}, 0), (4,))
    front = pareto(found)
    assert 1 < len(front) < len(shapes.layers)
    for place in front:
        faster = found.draft_ms < found.draft_ms[place]
        assert (found.acceptance[faster] < found.acceptance[place]).all()


def test_a_large_source_is_searched_in_larger_steps() -> None:
    huge = shape(layers=80, heads=64, kv_heads=8, head_size=128, hidden=8192, intermediate=28672, vocabulary=128256)
    found = legal_shapes(huge, "multiple of heads", Bounds(), "bfloat16")
    assert 100_000 < len(found.layers) < 5_000_000
    assert {1, 80} <= set(found.layers.tolist())


def test_a_million_candidates_in_seconds() -> None:
    large = shape(layers=22, heads=32, kv_heads=4, head_size=64, hidden=2048, intermediate=5632, vocabulary=32000)
    began = time.perf_counter()
    shapes = legal_shapes(large, "any", Bounds(), "bfloat16")
    found = rank(shapes, large, LATENCY, law(), 1e6, STEPS, Traffic({1: 1.0}, 0), (1, 2, 3, 4, 5, 6, 7, 8))
    pareto(found)
    assert len(shapes.layers) > 1_000_000
    assert time.perf_counter() - began < 30  # the figure itself is `benchmarks/design_rank.py`
