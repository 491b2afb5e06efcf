"""Designing: probes and step times in, a ranking with its errors out; what does not belong together is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from draftsmith import api
from draftsmith.cli import app
from draftsmith.core.errors import ConfigError, PredictionError
from draftsmith.core.records import AcceptanceCurve, AcceptancePoint, DistilledCheckpoint, LearningPoint
from draftsmith.core.shapes import Shape, shape_of
from draftsmith.core.store import write_json
from tests.unit.builders import profile_record, save_record, scorecard, shape_cell, shape_profile

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512,
    "intermediate_size": 1024, "vocab_size": 8000, "head_dim": 64,
}  # fmt: skip
SOURCE = shape_of(CONFIG, "the source")
MACHINE = {"cpu": "a processor", "bf16_units": True}


def cut(**sizes: int) -> Shape:
    return SOURCE.model_copy(update=sizes)


def timed(shape: Shape) -> float:
    """A machine on which a layer takes 0.4 ms, and bytes little."""
    return 0.3 + 0.4 * shape.layers + shape.parameters / 2e8


def acceptance(shape: Shape, tokens: int) -> float:
    logit = 0.3 + 0.6 * np.log2(shape.layers / 12) + 0.1 * np.log2(shape.intermediate / 1024) + 0.3 * np.log2(tokens / 1e6)
    return float(1 / (1 + np.exp(-logit)))


def probe(folder: Path, shape: Shape, tokens: int) -> dict[str, str]:
    name, chance = f"{shape.layers}-{shape.intermediate}-{tokens}", acceptance(shape, tokens)
    made = DistilledCheckpoint(
        student=name, student_fingerprint="s", trace="t", held_out=None, loss="forward_kl", lookahead=4, shape=shape,
        parameters=shape.parameters, tokens=tokens, fingerprint=name,
        curve=(LearningPoint(tokens=tokens, loss=1.0),),
    )  # fmt: skip
    point = AcceptancePoint(
        lookahead=4, steps=10.0, steps_std=0.0, tokens_per_step=2.0, tokens_per_step_error=0.1, accepted_per_step=1.0,
        acceptance_by_position=(chance,) * 4, conditional_acceptance_by_position=(chance,) * 4,
        engine_accepted_by_position=None,
    )  # fmt: skip
    card = scorecard(draft_fingerprint=name, overall=AcceptanceCurve(num_prompts=10, num_tokens=100, points=(point,)))
    return {
        "checkpoint": str(save_record(folder / name / "made", made)),
        "scorecard": str(save_record(folder / name / "card", card)),
    }


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    write_json(tmp_path / "source" / "config.json", CONFIG)
    sizes = [
        {"layers": 1}, {"layers": 4}, {"layers": 8}, {"layers": 12}, {"layers": 4, "hidden": 256},
        {"layers": 4, "intermediate": 512}, {"layers": 2, "vocabulary": 2000}, {"layers": 6, "kv_heads": 2, "heads": 4},
    ]  # fmt: skip
    cells = [shape_cell("all", timed(cut(**one)) / 0.9, cut(**one), batch=batch) for one in sizes for batch in (1, 4)]
    shapes = shape_profile(*cells).model_copy(update={"machine": MACHINE})
    probes = [probe(tmp_path, cut(layers=layers), 1_000_000) for layers in (1, 4, 8)]
    return {
        "source": str(tmp_path / "source"),
        "profile": str(save_record(tmp_path / "profile", profile_record(machine=MACHINE))),
        "shapes": str(save_record(tmp_path / "shapes", shapes)),
        "probes": probes,
        "tokens": 1_000_000,
        "store": tmp_path / "store",
    }


def test_the_best_of_every_depth_and_what_is_expected_of_it(given: dict[str, Any]) -> None:
    made = api.design(**given).record
    assert sorted(one.shape.layers for one in made.by_depth) == list(range(1, 13))
    speeds = [one.tokens_per_second for one in made.by_depth]
    assert speeds == sorted(speeds, reverse=True)
    assert made.considered > 9_000
    assert made.plain_tokens_per_second == pytest.approx(100.0)
    best = made.by_depth[0]
    assert best.speedup == pytest.approx(best.tokens_per_second / 100.0)
    assert best.draft_ms == pytest.approx(timed(best.shape), rel=0.1)
    assert made.law["layers"][0] == pytest.approx(0.6, abs=0.1)


def test_expensive_depth_asks_for_shallow_drafts(given: dict[str, Any], tmp_path: Path) -> None:
    def slow(cell: Any) -> Any:
        return cell.model_copy(update={"forward_ms": cell.forward_ms * 8})

    from draftsmith.core.records import ShapeProfile
    from draftsmith.core.store import read_record

    shapes = read_record(ShapeProfile, Path(given["shapes"]))
    slower = shapes.model_copy(update={"cells": tuple(slow(cell) for cell in shapes.cells)})
    deep = api.design(**given).record.by_depth[0].shape.layers
    shallow = api.design(**{**given, "shapes": str(save_record(tmp_path / "slow", slower))}).record.by_depth[0].shape.layers
    assert shallow < deep


def test_a_probe_at_the_end_of_the_front_is_not_proposed_again(given: dict[str, Any], tmp_path: Path) -> None:
    first = api.design(**given).record.next_probe
    more = [*given["probes"], probe(tmp_path, first.shape, 1_000_000)]
    second = api.design(**{**given, "probes": more}).record
    assert second.next_probe.shape != first.shape
    assert second.by_depth[0].error <= api.design(**given).record.by_depth[0].error


def test_limits_are_kept_to(given: dict[str, Any]) -> None:
    made = api.design(**given, most_parameters=12_000_000).record
    assert all(one.parameters <= 12_000_000 for one in (*made.by_depth, *made.front, made.next_probe))
    shallow = api.design(**given, most_layers=2).record
    assert {one.shape.layers for one in (*shallow.by_depth, *shallow.front, shallow.next_probe)} == {1, 2}


def test_of_the_same_arithmetic_a_small_shape_makes_more_tokens(given: dict[str, Any]) -> None:
    by_tokens = api.design(**given).record
    flops = 1_000_000 * 6.0 * (SOURCE.decoder_weights + SOURCE.head_weights)
    made = api.design(**{**given, "tokens": None}, training_flops=flops).record
    assert made.training == f"{flops:.1e} flops of training"
    tokens = {one.shape.layers: one.tokens for one in made.by_depth}
    assert tokens[1] > 2 * tokens[12]
    assert {one.tokens for one in by_tokens.by_depth} == {1_000_000}
    (whole,) = (one for one in made.by_depth if one.shape.layers == 12)
    assert whole.tokens * 6.0 * (whole.shape.decoder_weights + whole.shape.head_weights) == pytest.approx(flops, rel=1e-3)
    most = api.design(**{**given, "tokens": None}, training_flops=flops, most_tokens=1_200_000).record
    assert max(one.tokens for one in most.by_depth) == 1_200_000 < max(tokens.values())
    assert min(one.tokens for one in most.by_depth) < 1_200_000
    for more in ({"tokens": None}, {"training_flops": flops}):
        with pytest.raises(ConfigError, match="`tokens`, or `training_flops`, one of them"):
            api.design(**{**given, **more})


@pytest.mark.parametrize("machine", [{"cpu": "another"}, {**MACHINE, "bf16_units": False}])
def test_timings_of_two_machines_do_not_belong_together(given: dict[str, Any], tmp_path: Path, machine: dict[str, Any]) -> None:
    other = profile_record(machine=machine)
    with pytest.raises(PredictionError, match="different machines"):
        api.design(**{**given, "profile": str(save_record(tmp_path / "other", other))})


def test_probes_that_do_not_belong_together(given: dict[str, Any], tmp_path: Path) -> None:
    swapped = {"checkpoint": given["probes"][0]["checkpoint"], "scorecard": given["probes"][1]["scorecard"]}
    with pytest.raises(PredictionError, match="is of another draft"):
        api.design(**{**given, "probes": [swapped]})
    foreign = {"another vocabulary": cut(layers=1, vocabulary=2000), "24 layers of 12": cut(layers=24)}
    for problem, shape in foreign.items():
        with pytest.raises(PredictionError, match=f"was not cut from this source: it has {problem}"):
            api.design(**{**given, "probes": [probe(tmp_path, shape, 1_000)]})


def test_lookaheads_that_were_not_profiled(given: dict[str, Any]) -> None:
    with pytest.raises(PredictionError, match="the profile goes up to lookahead 4"):
        api.design(**given, lookaheads=(6, 8))
    once, twice = (api.design(**given, lookaheads=lookaheads).record for lookaheads in ((2, 4), (4, 2, 2, 4)))
    assert once.by_depth == twice.by_depth


def test_tensor_parallel_ranks_share_heads(given: dict[str, Any]) -> None:
    made = api.design(**given, tensor_parallel=4).record
    assert all(one.shape.heads % 4 == 0 and one.shape.intermediate % 4 == 0 for one in made.by_depth)


def test_the_verb(given: dict[str, Any]) -> None:
    words = ["design", "--source", given["source"], "--profile", given["profile"], "--shapes", given["shapes"]]
    for one in given["probes"]:
        words += ["--probe", f"{one['checkpoint']},{one['scorecard']}"]
    words += ["--tokens", "1000000", "--batch", "1=0.7,4=0.3", "--store", str(given["store"])]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "Worth a probe next" in done.output
    assert "design.png" in done.output
    odd = CliRunner().invoke(app, ["design", "--probe", "alone"])
    assert odd.exit_code == 2
    assert "CHECKPOINT,SCORECARD" in odd.output
