"""The latency model: least squares against scipy, planted coefficients found again, and errors on shapes it has not seen."""

import time
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls as scipy_nnls

from draftsmith.core.errors import PredictionError
from draftsmith.core.records import LatencyModel
from draftsmith.core.shapes import Shape
from draftsmith.theory.latency import TERMS, Pass, fit, in_cache, nnls, predict_ms, shape_arrays, terms_ms
from tests.unit.builders import assert_explains, shape

# A machine: 0.5 ms a pass, 0.1 ms a layer, about 50 GB/s and 1 Tflop/s.
PLANTED = {
    "fixed": 0.5,
    "layers": 0.1,
    "layer_width": 0.02,
    "attention_bytes": 22.0,
    "mlp_bytes": 18.0,
    "head_bytes": 25.0,
    "cache_bytes": 0.0,
    "flops": 900.0,
    "kv_bytes": 40.0,
}


def planted(**changes: float) -> LatencyModel:
    errors = {f"unseen_error_{name}": 0.0 for name in ("median", "worst", "rms")}
    return LatencyModel(dtype="bfloat16", coefficients=PLANTED | changes, num_shapes=9, most_tokens=512, **errors)


def llama(layers: int, hidden: int, vocabulary: int = 32_000, **changes: Any) -> Shape:
    heads = hidden // 64
    sizes = {"heads": heads, "kv_heads": heads, "head_size": 64, "hidden": hidden, "intermediate": 3 * hidden}
    return shape(layers=layers, vocabulary=vocabulary, **sizes | changes)


SHAPES = [
    llama(2, 1024),
    llama(8, 1024),
    llama(24, 1024),
    llama(4, 2048),
    llama(16, 2048, kv_heads=8),
    llama(6, 4096, kv_heads=8, vocabulary=128_000),
    llama(8, 1024, vocabulary=128_000),
    llama(8, 512, intermediate=4096),
    llama(12, 1536, intermediate=2048, kv_heads=4),
    llama(12, 768, gated=False),
]
CACHED = [*SHAPES, llama(1, 512, 4_000), llama(2, 512), llama(1, 1024, 16_000), llama(4, 640, 24_000), llama(3, 768, 48_000)]
PLACES = ((1, 128), (1, 8192), (8, 1024), (16, 65536), (64, 4096))  # new tokens, tokens of context


def passes(model: LatencyModel, shapes: list[Shape] = SHAPES) -> list[Pass]:
    return [
        Pass(one, tokens, kv_tokens, sum(terms_ms(model, one, tokens, kv_tokens).values()))
        for one in shapes
        for tokens, kv_tokens in PLACES
    ]


class TestNnls:
    @pytest.mark.parametrize("seed", range(40))
    def test_it_is_scipys(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            columns = int(rng.integers(1, 9))
            a = rng.normal(size=(int(rng.integers(columns, 30)), columns)) * 10 ** rng.uniform(-4, 4, columns)
            if seed % 2:  # features are positive, and much alike
                a = np.abs(a)
            b = rng.normal(size=len(a))
            expected, rest = scipy_nnls(a, b)
            found = nnls(a, b)
            assert (found >= 0).all()
            assert np.linalg.norm(a @ found - b) == pytest.approx(rest, rel=1e-8, abs=1e-10)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8 * max(1.0, float(expected.max())))

    def test_an_answer_that_lies_inside_is_the_usual_one(self) -> None:
        rng = np.random.default_rng(0)
        a, x = rng.random((20, 5)), rng.random(5) + 0.1
        np.testing.assert_allclose(nnls(a, a @ x), x, rtol=1e-8)

    def test_what_would_be_negative_is_zero(self) -> None:
        assert nnls(np.eye(3), np.array([1.0, -2.0, 3.0])).tolist() == [1.0, 0.0, 3.0]

    def test_nothing_helps(self) -> None:
        assert nnls(np.ones((4, 2)), -np.ones(4)).tolist() == [0.0, 0.0]

    def test_a_column_of_zeros_gets_nothing(self) -> None:
        a = np.array([[1.0, 0.0], [2.0, 0.0]])
        np.testing.assert_allclose(nnls(a, np.array([3.0, 6.0])), [3.0, 0.0])

    def test_two_columns_that_are_one(self) -> None:
        a = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        assert nnls(a, np.array([2.0, 4.0, 6.0])).sum() == pytest.approx(2.0)

    def test_fewer_rows_than_columns(self) -> None:
        rng = np.random.default_rng(4)
        a, b = rng.random((3, 8)), rng.random(3)
        assert np.linalg.norm(a @ nnls(a, b) - b) == pytest.approx(scipy_nnls(a, b)[1], abs=1e-8)


class TestFit:
    def test_planted_coefficients_are_found_again(self) -> None:
        found = fit(passes(planted()), "bfloat16")
        assert found.coefficients == pytest.approx(PLANTED, rel=1e-5)
        assert (found.num_shapes, found.dtype) == (len(SHAPES), "bfloat16")
        assert found.unseen_error_worst < 1e-6

    @pytest.mark.parametrize("missing", ["layers", "head_bytes", "kv_bytes"])
    def test_a_term_that_costs_nothing_is_zero_and_not_negative(self, missing: str) -> None:
        found = fit(passes(planted(**{missing: 0.0})), "bfloat16")
        assert found.coefficients[missing] == pytest.approx(0.0, abs=1e-6)
        assert min(found.coefficients.values()) >= 0

    def test_at_one_token_a_pass_bytes_are_told_from_flops_by_leaving_flops_out(self) -> None:
        single = [one for one in passes(planted(flops=0.0)) if one.tokens == 1]
        found = fit(single, "bfloat16")
        assert found.coefficients["flops"] == 0.0
        assert found.coefficients["mlp_bytes"] == pytest.approx(PLANTED["mlp_bytes"], rel=1e-5)
        assert found.most_tokens == 1
        with pytest.raises(PredictionError) as error:
            predict_ms(found, shape_arrays(SHAPES[:1]), np.array([8]), np.array([0]))
        assert_explains(error.value, 1, 8, way_out="profile the shapes at that batch size")

    def test_noise_of_a_percent_leaves_errors_of_a_few(self) -> None:
        rng = np.random.default_rng(0)
        noisy = [
            Pass(one.shape, one.tokens, one.kv_tokens, one.milliseconds * float(rng.normal(1, 0.01)))
            for one in passes(planted())
        ]
        found = fit(noisy, "bfloat16")
        assert 0.001 < found.unseen_error_median < 0.03
        assert found.unseen_error_median <= found.unseen_error_rms <= found.unseen_error_worst < 0.1

    def test_the_errors_are_on_shapes_left_out_of_the_fit_with_all_their_passes(self) -> None:
        """One shape takes 10% longer than its size would tell: without it, nobody could know."""
        odd = [
            Pass(one.shape, one.tokens, one.kv_tokens, one.milliseconds * (1.1 if one.shape == SHAPES[4] else 1.0))
            for one in passes(planted())
        ]
        assert fit(odd, "bfloat16").unseen_error_worst >= 1 - 1 / 1.1 - 1e-6

    def test_long_and_short_times_count_alike(self) -> None:
        """By relative error: a shape a thousand times as slow must not drown the others."""
        slow = Pass(llama(80, 8192), 64, 65536, 12_345.0)  # no machine of ours: the model cannot meet it
        found = fit([*passes(planted()), slow], "bfloat16")
        small = passes(planted(), SHAPES[:1])
        for one in small:
            expected = sum(terms_ms(found, one.shape, one.tokens, one.kv_tokens).values())
            assert expected == pytest.approx(one.milliseconds, rel=0.1)

    def test_a_planted_cache_is_found_again(self) -> None:
        fast = planted(cache_bytes=8.0).model_copy(update={"cache_gb": 0.125})
        found = fit(passes(fast, CACHED), "bfloat16")
        assert found.cache_gb == 0.125
        assert found.coefficients == pytest.approx(fast.coefficients, rel=1e-4)
        assert found.unseen_error_median < 1e-6

    def test_noise_is_not_taken_for_a_cache(self) -> None:
        for seed in range(10):
            rng = np.random.default_rng(seed)
            noisy = [
                Pass(one.shape, one.tokens, one.kv_tokens, one.milliseconds * float(rng.normal(1, 0.02)))
                for one in passes(planted(), CACHED)
            ]
            assert fit(noisy, "bfloat16").cache_gb == 0

    @pytest.mark.parametrize(("weights_gb", "share"), [(0.05, 1.0), (0.1, 1.0), (0.15, 0.5), (0.2, 0.0), (7.0, 0.0)])
    def test_what_a_cache_keeps(self, weights_gb: float, share: float) -> None:
        assert in_cache(np.array([weights_gb]), 0.1) == pytest.approx([share])
        assert in_cache(np.array([weights_gb]), 0.0) == [0.0]

    @pytest.mark.parametrize("count", [1, 3])
    def test_too_few_shapes(self, count: int) -> None:
        with pytest.raises(PredictionError) as caught:
            fit(passes(planted(), SHAPES[:count]), "bfloat16")
        assert_explains(caught.value, "at least 4 different shapes", f"there are {count}", way_out="profile more shapes")

    def test_four_are_enough(self) -> None:
        assert fit(passes(planted(), SHAPES[:4]), "bfloat16").num_shapes == 4


class TestPrediction:
    def test_many_shapes_at_once(self) -> None:
        model = planted()
        tokens, kv_tokens = np.arange(1, 11), 100 * np.arange(10)
        found = predict_ms(model, shape_arrays(SHAPES), tokens, kv_tokens)
        expected = [sum(terms_ms(model, one, t, c).values()) for one, t, c in zip(SHAPES, tokens, kv_tokens, strict=True)]
        np.testing.assert_allclose(found, expected)

    def test_a_hundred_thousand_take_no_time(self) -> None:
        arrays = shape_arrays([SHAPES[i % 10] for i in range(1000)])
        many = type(arrays)(**{name: np.tile(getattr(arrays, name), 100) for name in arrays.__dataclass_fields__})
        began = time.perf_counter()
        assert len(predict_ms(planted(), many, np.ones(100_000), np.full(100_000, 512))) == 100_000
        assert time.perf_counter() - began < 1.0

    def test_the_terms_are_all_there_is(self) -> None:
        assert tuple(terms_ms(planted(), SHAPES[0])) == TERMS

    def test_a_large_vocabularys_head_shows(self) -> None:
        """A shallow draft with 128,000 words spends most of its time on its head."""
        small, large = (terms_ms(planted(), llama(2, 1024, vocabulary=words)) for words in (4_000, 128_000))
        assert large["head_bytes"] == pytest.approx(25.0 * 1024 * 128_000 * 2 / 1e9)
        assert large["head_bytes"] > 0.5 * sum(large.values())
        assert small["head_bytes"] < 0.2 * sum(small.values())
        assert large["layers"] == small["layers"]

    @pytest.mark.parametrize(
        ("change", "terms"),
        [
            ({"kv_heads": 1}, {"attention_bytes", "flops", "kv_bytes"}),
            ({"intermediate": 99}, {"mlp_bytes", "flops"}),
            ({"vocabulary": 99}, {"head_bytes", "flops"}),
            ({"layers": 9}, set(TERMS) - {"fixed", "head_bytes", "cache_bytes"}),
            ({"gated": False}, {"mlp_bytes", "flops"}),
            ({"tied": True}, set()),
        ],
    )
    def test_what_depends_on_what(self, change: dict[str, Any], terms: set[str]) -> None:
        before, after = (terms_ms(planted(), llama(**{"layers": 4, "hidden": 1024} | more), 1, 1000) for more in ({}, change))
        assert {name for name in TERMS if before[name] != after[name]} == terms

    def test_contexts_cost_only_where_there_is_a_cache(self) -> None:
        none, long = (terms_ms(planted(), SHAPES[0], 1, kv_tokens) for kv_tokens in (0, 100_000))
        assert none["kv_bytes"] == 0
        assert long["kv_bytes"] == pytest.approx(40.0 * SHAPES[0].kv_bytes_per_token("bfloat16") * 1e5 / 1e9)

    def test_bytes_are_those_of_the_dtype_and_flops_are_not(self) -> None:
        half, full = (terms_ms(planted().model_copy(update={"dtype": name}), SHAPES[0]) for name in ("bfloat16", "float32"))
        assert full["head_bytes"] == 2 * half["head_bytes"]
        assert full["flops"] == half["flops"]
