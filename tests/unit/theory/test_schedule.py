"""The lookahead for each batch size, in vLLM's own format, and what a draft takes from the cache."""

import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.core.records import ScheduleCell
from draftsmith.theory.schedule import best_lookaheads, memory_cost, vllm_schedule
from tests.unit.builders import shape
from tests.unit.builders import throughput_point as point


def cell(batch: int, lookahead: int) -> ScheduleCell:
    return ScheduleCell(
        batch=batch, context=128, lookahead=lookahead, tokens_per_second=1.0, switched_off_tokens_per_second=1.0
    )


class TestBest:
    def test_it_is_the_fastest_of_all(self) -> None:
        points = [point(1.2, lookahead=1), point(1.7, lookahead=3), point(1.4, lookahead=8)]
        (best,) = best_lookaheads(points, {(1, 128): 95.0})
        assert (best.batch, best.context, best.lookahead, best.tokens_per_second) == (1, 128, 3, 170.0)
        assert best.switched_off_tokens_per_second == 95.0

    def test_nothing_is_proposed_where_nothing_helps(self) -> None:
        """An idle draft, which is slower than none, is what there is to compare with."""
        (best,) = best_lookaheads([point(0.9), point(0.93, lookahead=1)], {(1, 128): 95.0})
        assert (best.lookahead, best.tokens_per_second) == (0, 95.0)
        (best,) = best_lookaheads([point(0.97)], {(1, 128): 95.0})
        assert best.lookahead == 3

    def test_if_it_makes_no_difference_nothing_is_proposed(self) -> None:
        (best,) = best_lookaheads([point(1.0)], {(1, 128): 100.0})
        assert best.lookahead == 0

    def test_every_batch_size_and_context_has_a_cell_of_its_own(self) -> None:
        places = [(b, c) for b in (16, 1, 4) for c in (1024, 128)]
        points = [point(1 + 1 / (b + k), batch=b, context=c, lookahead=k) for b, c in places for k in (1, 2)]
        found = best_lookaheads(points, dict.fromkeys(places, 100.0))
        assert [(best.batch, best.context) for best in found] == sorted(places)
        assert {best.lookahead for best in found} == {1}


def vllm_utils() -> Any:
    """The module with vLLM's own check, without the seconds that importing all of vLLM takes."""
    package = importlib.util.find_spec("vllm")
    path = Path(package.origin).parent / "v1/spec_decode/dynamic/utils.py" if package and package.origin else None
    if path is None or not path.exists():
        pytest.skip("this vLLM has no dynamic speculation, or there is none")
    spec = importlib.util.spec_from_file_location("dynamic_utils", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestVllm:
    @pytest.mark.parametrize(
        ("cells", "ranges"),
        [
            ([cell(1, 5)], [(1, 1, 5)]),
            ([cell(4, 5)], [(1, 4, 5)]),
            ([cell(1, 5), cell(8, 5)], [(1, 8, 5)]),
            ([cell(1, 5), cell(2, 3)], [(1, 1, 5), (2, 2, 3)]),
            ([cell(1, 5), cell(4, 3), cell(16, 0)], [(1, 3, 5), (4, 15, 3), (16, 16, 0)]),
            ([cell(16, 0), cell(1, 5), cell(4, 5)], [(1, 15, 5), (16, 16, 0)]),
            ([cell(2, 5), cell(4, 3), cell(8, 3), cell(9, 5)], [(1, 3, 5), (4, 8, 3), (9, 9, 5)]),
            ([], []),
        ],
    )
    def test_a_range_reaches_up_to_the_next_size_that_was_measured(
        self, cells: list[ScheduleCell], ranges: list[tuple[int, int, int]]
    ) -> None:
        assert vllm_schedule(cells) == ranges

    @given(st.dictionaries(st.integers(1, 64), st.integers(0, 8), min_size=1, max_size=8))
    @settings(max_examples=200, deadline=None)
    def test_every_size_measured_gets_its_lookahead_and_none_is_left_out(self, best: dict[int, int]) -> None:
        ranges = vllm_schedule([cell(batch, lookahead) for batch, lookahead in best.items()])
        dense = {batch: k for first, last, k in ranges for batch in range(first, last + 1)}
        assert sorted(dense) == list(range(1, max(best) + 1))
        assert {batch: dense[batch] for batch in best} == best
        assert sum(last - first + 1 for first, last, _ in ranges) == len(dense)  # no overlap
        assert all(one[2] != other[2] for one, other in pairwise(ranges))  # and no more than needed

    def test_vllm_takes_it(self) -> None:
        utils, rng = vllm_utils(), np.random.default_rng(0)
        for _ in range(200):
            batches = sorted(rng.choice(np.arange(1, 65), size=int(rng.integers(1, 7)), replace=False).tolist())
            best = {batch: int(rng.integers(0, 9)) for batch in batches}
            ranges = vllm_schedule([cell(batch, k) for batch, k in best.items()])
            assert utils.validate_and_normalize_dynamic_sd_schedule(ranges) == ranges
            lookup = utils.build_dynamic_sd_schedule_lookup(ranges, 128, 8)
            assert {batch: lookup[batch] for batch in batches} == best
            assert set(lookup[batches[-1] :]) == {best[batches[-1]]}


class TestMemory:
    TARGET = shape(layers=32, heads=32, kv_heads=8, head_size=128, hidden=4096, intermediate=14336, vocabulary=128_256)
    DRAFT = shape(layers=4, heads=32, kv_heads=8, head_size=128, hidden=4096, intermediate=14336, vocabulary=128_256)

    def test_by_hand(self) -> None:
        """Llama 3 8B: 16.06 GB of weights, 131,072 bytes a token; the draft has four of its layers."""
        cost = memory_cost(self.TARGET, self.DRAFT, "bfloat16", memory_gb=80, context=4096)
        weights, draft = self.TARGET.parameters * 2, self.DRAFT.parameters * 2
        assert cost.draft_kv_bytes_per_token == 2 * 4 * 8 * 128 * 2 == 131_072 // 8
        assert cost.draft_weight_gb == pytest.approx(draft / 1e9)
        assert cost.rows_without_draft == int((80e9 - weights) // (131_072 * 4096)) == 119
        assert cost.rows_with_draft == int((80e9 - weights - draft) // (131_072 * 9 / 8 * 4096)) < 119
        assert (cost.context, cost.weight_gb_per_device) == (4096, pytest.approx((weights + draft) / 1e9))

    def test_the_rows_just_fit(self) -> None:
        for context in (1000, 4096, 32_768):
            cost = memory_cost(self.TARGET, self.DRAFT, "bfloat16", 40, context)
            both = self.TARGET.kv_bytes_per_token("bfloat16") + self.DRAFT.kv_bytes_per_token("bfloat16")
            left = 40e9 - self.TARGET.weight_bytes("bfloat16") - self.DRAFT.weight_bytes("bfloat16")
            assert cost.rows_with_draft * both * context <= left < (cost.rows_with_draft + 1) * both * context

    def test_more_devices_share_the_weights_and_hold_as_many_rows_in_all(self) -> None:
        one, four = (memory_cost(self.TARGET, self.DRAFT, "bfloat16", 80, 4096, devices) for devices in (1, 4))
        assert four.weight_gb_per_device == pytest.approx(one.weight_gb_per_device / 4)
        assert (four.rows_with_draft, four.rows_without_draft) == (one.rows_with_draft, one.rows_without_draft)

    @pytest.mark.parametrize(("memory_gb", "rows"), [(10, (0, 0)), (19, (5, 0))])
    def test_what_does_not_fit_leaves_no_rows(self, memory_gb: float, rows: tuple[int, int]) -> None:
        cost = memory_cost(self.TARGET, self.DRAFT, "bfloat16", memory_gb, 4096)
        assert (cost.rows_without_draft, cost.rows_with_draft) == rows

    def test_twice_the_bytes_leave_less_than_half_the_rows(self) -> None:
        half, full = (memory_cost(self.TARGET, self.DRAFT, name, 80, 4096) for name in ("bfloat16", "float32"))
        assert full.rows_with_draft < half.rows_with_draft / 2
        assert full.draft_weight_gb == 2 * half.draft_weight_gb

    def test_quantised_weights_leave_more_room(self) -> None:
        whole, packed = (memory_cost(self.TARGET, self.DRAFT, "bfloat16", 80, 4096, 1, name) for name in (None, "int8"))
        saved = self.TARGET.parameters / 1e9
        assert packed.weight_gb_per_device == pytest.approx(whole.weight_gb_per_device - saved)
        assert packed.draft_weight_gb == whole.draft_weight_gb
        assert packed.rows_without_draft == int((80e9 - self.TARGET.parameters) // (131_072 * 4096))
