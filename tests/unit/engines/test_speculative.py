"""The loop against plain decoding, row by row, with real (tiny) models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from draftsmith.core.errors import EngineError
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, NgramDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceRow
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._speculative import Clocks, ModelProposer, _closed_up, decode
from draftsmith.engines.transformers import PLUGIN, _load
from draftsmith.theory.acceptance import replay
from tests.tiny import tiny_llama

CONFIG = EngineConfig(dtype="float32", device="cpu", batch_size=8)
GREEDY = Sampling()


def requests(count: int = 6) -> list[Request]:
    rng = np.random.default_rng(4)
    return [Request(rng.integers(4, 64, size=n).astype(np.int32), i) for i, n in enumerate(rng.integers(1, 12, size=count))]


def plain(target: Path, limits: Limits, sampling: Sampling = GREEDY) -> list[np.ndarray]:
    with PLUGIN.recorder(target, CONFIG) as recorder:
        return [one.output_ids for one in recorder.record(requests(), sampling, limits)]


@pytest.mark.parametrize("lookahead", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_greedy_output_is_that_of_plain_decoding(target: Path, draft: Path, lookahead: int, batch_size: int) -> None:
    limits = Limits(40, (2,))
    config = CONFIG.model_copy(update={"batch_size": batch_size})
    with PLUGIN.live(target, ModelDraft(path=str(draft)), lookahead, GREEDY, config) as live:
        run = live.run(requests(), limits)
    for row, expected in zip(run.rows, plain(target, limits), strict=True):
        np.testing.assert_array_equal(row.output_ids, expected)
        assert row.step_tokens.sum() == len(expected)
        assert row.step_tokens.max() <= lookahead + 1


def test_steps_of_a_batch_are_those_that_replay_predicts(target: Path, draft: Path) -> None:
    limits = Limits(48, (2,), tail=8)
    with PLUGIN.recorder(target, CONFIG) as recorder:
        written = recorder.record(requests(), GREEDY, limits)
    rows = [
        TraceRow("p", "d", "test", request.prompt_ids, one.output_ids, one.num_output, one.logprobs, one.finish_reason, 0)
        for request, one in zip(requests(), written, strict=True)
    ]
    with PLUGIN.scorer(draft, GREEDY, CONFIG) as scorer:
        hits = [(s.argmax_ids == r.output_ids).astype(float) for s, r in zip(scorer.score(rows), rows, strict=True)]
    for lookahead in (1, 3, 8):
        expected = replay(hits, [row.num_output for row in rows], [lookahead]).steps[:, 0]
        with PLUGIN.live(target, ModelDraft(path=str(draft)), lookahead, GREEDY, CONFIG) as live:
            steps = [len(row.step_tokens) for row in live.run(requests(), Limits(48, (2,))).rows]
        assert steps == expected.tolist()
        assert len(set(steps)) > 1, "rows of this batch should differ, or the test shows little"


def test_last_proposals_kv_after_full_acceptance(target: Path) -> None:
    """Regression: the last proposal is never fed to the draft while proposing. If it stays unfed after all were accepted,
    its slot holds nothing, and a draft identical to its target stops agreeing from the second step on."""
    limits = Limits(41, ())
    with PLUGIN.live(target, ModelDraft(path=str(target)), 3, GREEDY, CONFIG) as live:
        run = live.run(requests(), limits)
    assert all((row.step_tokens[:-1] == 4).all() for row in run.rows)


def test_a_steps_passes_do_not_hang_on_what_was_accepted(target: Path, draft: Path) -> None:
    def widths(drafting: Path) -> set[tuple[int, ...]]:
        proposer, passes = ModelProposer(_load(Checkpoint(drafting, False), CONFIG), "greedy", GREEDY, 64), []
        forward = proposer.model.forward

        def noted(tokens_BQ: Tensor, positions_BQ: Tensor, keep_logits: int, **more: Any) -> Tensor:
            passes.append(tokens_BQ.shape[1])
            return forward(tokens_BQ, positions_BQ, keep_logits, **more)

        proposer.model.forward = noted  # type: ignore[method-assign]
        chosen = [request for request in requests() if len(request.prompt_ids) > 1]
        decode(_load(Checkpoint(target, False), CONFIG), proposer, 3, chosen, GREEDY, Limits(24, ()), Clocks())
        steps = np.array(passes[1:-3])  # without the prefill, and without the last step, which may look less far ahead
        return {tuple(step) for step in steps[: len(steps) // 3 * 3].reshape(-1, 3)}

    assert widths(draft) == widths(target) == {(2, 1, 1)}


def test_the_end_token_ends_a_row_inside_an_accepted_run(target: Path) -> None:
    free = plain(target, Limits(30, ()))
    stop = int(free[0][10])
    limits = Limits(30, (stop,))
    with PLUGIN.live(target, ModelDraft(path=str(target)), 7, GREEDY, CONFIG) as live:
        run = live.run(requests(), limits)
    for row, whole in zip(run.rows, free, strict=True):
        at = np.flatnonzero(whole == stop)
        expected = whole[: at[0] + 1] if len(at) else whole
        np.testing.assert_array_equal(row.output_ids, expected)
        assert row.finish_reason == ("eos" if len(at) else "length")


def test_the_tail_follows_the_logical_end(target: Path) -> None:
    whole = plain(target, Limits(36, ()))
    stop = int(whole[0][10])
    with PLUGIN.recorder(target, CONFIG) as recorder:
        rows = recorder.record(requests(), GREEDY, Limits(28, (stop,), tail=8, top_logprobs=3))
    for row, expected in zip(rows, whole, strict=True):
        assert len(row.output_ids) == row.num_output + 8 == len(row.logprobs)
        np.testing.assert_array_equal(row.output_ids, expected[: len(row.output_ids)])
        assert row.top_ids is not None
        assert row.top_ids.reshape(-1, 3)[:, 0].tolist() == row.output_ids.tolist()


def test_prompt_lookup_is_lossless_too(target: Path) -> None:
    limits = Limits(60, (2,))
    with PLUGIN.live(target, NgramDraft(), 4, GREEDY, CONFIG) as live:
        run = live.run(requests(), limits)
    for row, expected in zip(run.rows, plain(target, limits), strict=True):
        np.testing.assert_array_equal(row.output_ids, expected)


def test_a_rows_draws_do_not_depend_on_its_neighbours(target: Path, draft: Path) -> None:
    sampling, limits = Sampling(temperature=1.0), Limits(20, ())
    model = ModelDraft(path=str(draft), method="probabilistic")
    with PLUGIN.live(target, model, 3, sampling, CONFIG) as live:
        together = live.run(requests(), limits).rows
        alone = [live.run([request], limits).rows[0] for request in requests()]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.output_ids, other.output_ids)
        np.testing.assert_array_equal(one.step_tokens, other.step_tokens)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.7), Sampling(temperature=1.0, top_k=5), Sampling(temperature=1.0, top_p=0.8)]
)
def test_recorded_logprobs_are_those_of_the_processed_distribution(target: Path, sampling: Sampling) -> None:
    limits = Limits(12, ())
    with PLUGIN.recorder(target, CONFIG) as recorder:
        written = recorder.record(requests(), sampling, limits)
    rows = [
        TraceRow("p", "d", "test", request.prompt_ids, one.output_ids, one.num_output, one.logprobs, one.finish_reason, 0)
        for request, one in zip(requests(), written, strict=True)
    ]
    with PLUGIN.scorer(target, sampling, CONFIG) as scorer:
        for row, score in zip(rows, scorer.score(rows), strict=True):
            np.testing.assert_allclose(score.logprobs, row.logprobs, atol=1e-4)


def test_a_draft_with_other_padding_serves(target: Path, tmp_path: Path) -> None:
    padded = tiny_llama(tmp_path / "padded", seed=3, rows=80)
    limits = Limits(20, ())
    with PLUGIN.live(target, ModelDraft(path=str(padded)), 3, GREEDY, CONFIG) as live:
        run = live.run(requests(), limits)
    for row, expected in zip(run.rows, plain(target, limits), strict=True):
        np.testing.assert_array_equal(row.output_ids, expected)


@pytest.mark.parametrize(
    ("going_on", "closed_up"), [([0, 1, 2], [0, 1, 2]), ([1, 2, 3], [3, 1, 2]), ([3, 5], [5, 3]), ([4], [4]), ([], [])]
)
def test_rows_that_leave_are_filled_from_behind(going_on: list[int], closed_up: list[int]) -> None:
    """No row that stays in front is moved, and none is overwritten before it was moved."""
    assert _closed_up(going_on) == closed_up


def test_phases_are_timed(target: Path, draft: Path) -> None:
    model = _load(Checkpoint(target, False), CONFIG)
    proposer = ModelProposer(_load(Checkpoint(draft, False), CONFIG), "greedy", GREEDY, 64)
    clocks = Clocks()
    decode(model, proposer, 3, requests(), GREEDY, Limits(20, ()), clocks)
    assert all(seconds > 0 for seconds in clocks.totals().values())


def test_what_does_not_fit_is_refused(target: Path) -> None:
    with PLUGIN.live(target, None, 0, GREEDY, CONFIG) as live:
        with pytest.raises(EngineError, match="needs 5"):
            live.run(requests(), Limits(5000, ()))
        with pytest.raises(EngineError, match="no tokens"):
            live.run([Request(np.zeros(0, dtype=np.int32), 0)], Limits(5, ()))
    with pytest.raises(EngineError, match="one device"):
        _load(Checkpoint(target, False), CONFIG.model_copy(update={"tensor_parallel": 2}))
