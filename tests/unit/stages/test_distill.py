"""Distilling: a draft gets better at what its target writes, on any number of ranks, and what cannot teach is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftsmith import api
from draftsmith.cli import app, options
from draftsmith.cli_errors import said
from draftsmith.core.errors import ConfigError, DataError, TrainingError
from tests.tiny import near_copy, tiny_llama

pytest.importorskip("transformers")

from safetensors.torch import load_file

ENGINE = {"dtype": "float32", "threads": 1}
FAST = {"steps": 30, "batch": 4, "micro_batch": 2, "length": 32, "learning_rate": 3e-3, "precision": "float32"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target"), layers=2)


@pytest.fixture(scope="module")
def student(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return near_copy(target, tmp_path_factory.mktemp("student"), noise=1.0)


@pytest.fixture(scope="module")
def traces(target: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    data = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    pairs = [(i, j) for i in range(60) for j in range(0, 60, 9)]
    data.write_text("".join(f'{{"prompt": "w{i} w{j}"}}\n' for i, j in pairs))

    def recorded(split: str, count: int, kept: int) -> Path:
        return api.record(
            target=target, datasets=("jsonl",), data=data, split=split, num_prompts=count, max_new_tokens=16,
            top_logprobs=kept, engine=ENGINE, store=store,
        ).folder  # fmt: skip

    return {
        "train": recorded("train", 96, 8),
        "probe": recorded("probe", 16, 0),
        "test": recorded("test", 8, 8),
        "bare": recorded("train", 8, 0),
    }


def distilled(student: Path, traces: dict[str, Path], store: Path, **more: Any) -> Any:
    given = {
        "student": student,
        "trace": traces["train"],
        "held_out": traces["probe"],
        "check_every": 10,
        "train": FAST,
        **more,
    }
    return api.distill(store=store, **given)


def tokens_per_step(made: Any) -> list[float]:
    return [point.tokens_per_step for point in made.record.curve if point.tokens_per_step is not None]


@pytest.mark.parametrize("loss", ["forward_kl", "acceptance_length"])
def test_a_draft_gets_better_on_what_was_held_out(student: Path, traces: dict[str, Path], store: Path, loss: str) -> None:
    made = distilled(student, traces, store, loss=loss)
    measured = tokens_per_step(made)
    assert len(measured) == 3
    assert made.record.tokens == 30 * 4 * 32
    before = api.evaluate(trace=traces["probe"], draft=student, lookaheads=(5,), engine=ENGINE, store=store)
    after = api.evaluate(trace=traces["probe"], draft=made.folder / "model", lookaheads=(5,), engine=ENGINE, store=store)
    assert after.record.overall.at(5).tokens_per_step > before.record.overall.at(5).tokens_per_step + 0.1
    assert measured[-1] == pytest.approx(after.record.overall.at(5).tokens_per_step, rel=1e-6)


def test_a_teacher_that_is_asked_teaches_as_one_that_was_recorded(
    student: Path, target: Path, traces: dict[str, Path], store: Path
) -> None:
    """What was recorded bounds the loss from below, and the draft learns as much from it."""
    recorded, asked = (distilled(student, traces, store, teacher=one) for one in (None, target))
    for less, more in zip(recorded.record.curve[:5], asked.record.curve[:5], strict=True):
        assert less.loss < more.loss < 1.5 * less.loss
    assert asked.record.curve[-1].loss < 0.7 * asked.record.curve[0].loss
    assert tokens_per_step(recorded)[-1] == pytest.approx(tokens_per_step(asked)[-1], abs=0.2)


def test_it_learns_from_what_it_writes_itself(student: Path, target: Path, traces: dict[str, Path], store: Path) -> None:
    made = distilled(student, traces, store, teacher=target, on_policy_every=2)
    assert tokens_per_step(made)[-1] > tokens_per_step(made)[0] - 0.05
    assert made.record.curve[-1].loss < made.record.curve[0].loss


def test_text_may_be_mixed_in(student: Path, target: Path, traces: dict[str, Path], store: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": " ".join(f"w{(7 * i) % 60}" for i in range(400))}))
    text = {"words": {"path": str(tmp_path / "text.jsonl"), "weight": 0.5}}
    made = distilled(student, traces, store, text=text, loss="cross_entropy")
    assert made.record.curve[-1].loss < made.record.curve[0].loss
    with pytest.raises(DataError, match="forward_kl needs the target's probabilities, and words has none"):
        distilled(student, traces, store, text=text)


def test_two_ranks_learn_what_one_does(student: Path, traces: dict[str, Path], store: Path, tmp_path: Path) -> None:
    """Acceptance is weighed by row, so that how rows are spread over ranks changes nothing; and both measure alike."""
    alone = distilled(student, traces, store, loss="acceptance_length")
    code = "import sys, json; from draftsmith import api; given = json.loads(sys.argv[1]); api.distill(**given)"
    given = {
        "student": str(student), "trace": str(traces["train"]), "held_out": str(traces["probe"]), "check_every": 10,
        "train": FAST, "loss": "acceptance_length", "store": str(tmp_path),
    }  # fmt: skip
    (tmp_path / "run.py").write_text(code)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "run.py"), json.dumps(given)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "distilled").iterdir()
    ours, theirs = (load_file(one / "model" / "model.safetensors") for one in (folder, alone.folder))
    for name, weight in theirs.items():
        assert ours[name].sub(weight).abs().max() < 5e-3, name
    found = json.loads((folder / "record.json").read_text())
    assert [point["loss"] for point in found["curve"]] == pytest.approx([p.loss for p in alone.record.curve], rel=1e-3)


def test_the_same_call_again_does_nothing(student: Path, traces: dict[str, Path], store: Path) -> None:
    first, second = (distilled(student, traces, store) for _ in range(2))
    assert first.folder == second.folder


def test_test_prompts_neither_teach_nor_are_looked_at(student: Path, traces: dict[str, Path], store: Path) -> None:
    with pytest.raises(DataError, match="prompts of the test split"):
        distilled(student, traces, store, trace=traces["test"])
    with pytest.raises(DataError, match="prompts of the test split"):
        distilled(student, traces, store, held_out=traces["test"])


def test_what_cannot_teach_is_refused(student: Path, traces: dict[str, Path], store: Path) -> None:
    with pytest.raises(ConfigError, match="there is no loss 'kl'"):
        distilled(student, traces, store, loss="kl")
    with pytest.raises(ConfigError, match="must be judged by a teacher"):
        distilled(student, traces, store, on_policy_every=2)
    with pytest.raises(DataError, match="needs the target's probabilities, and trace has none"):
        distilled(student, traces, store, trace=traces["bare"])
    with pytest.raises(ConfigError, match="would teach the student what it writes itself"):
        distilled(student, traces, store, teacher=student, on_policy_every=2, loss="cross_entropy")
    with pytest.raises(ConfigError, match=r"prompts that are held out are what the student learns from \(trace\)"):
        distilled(student, traces, store, held_out=traces["train"])
    with pytest.raises(ConfigError, match=r"prompts that are held out are what the student learns from \(trace\)"):
        distilled(student, traces, store, held_out=traces["bare"], loss="cross_entropy")  # other records of the same prompts
    with pytest.raises(ConfigError, match="a text is named `trace`"):
        distilled(student, traces, store, text={"trace": {"path": str(traces["train"])}})


def test_settings_that_only_training_knows_are_those_of_the_verb(student: Path, traces: dict[str, Path], store: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        distilled(student, traces, store, train={**FAST, "steps": 0})
    assert said(caught.value, options()).startswith("distill cannot run: --steps should be greater than or equal to 1")
    with pytest.raises(ConfigError) as caught:
        distilled(student, traces, store, loss="kl")
    assert said(caught.value, options()) == str(caught.value)


def test_a_run_that_goes_astray_says_so(student: Path, traces: dict[str, Path], store: Path) -> None:
    with pytest.raises(TrainingError, match="the loss is no number any more in step"):
        distilled(student, traces, store, train={**FAST, "learning_rate": 1e20, "warmup_steps": 0})


def test_a_step_is_not_taken_along_a_gradient_that_is_no_number(
    student: Path, traces: dict[str, Path], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(float("inf")))
    with pytest.raises(TrainingError, match="the gradient is no number any more in step 1"):
        distilled(student, traces, store, train={**FAST, "seed": 1})


def test_a_copy_of_the_store_is_the_same_text(student: Path, traces: dict[str, Path], store: Path, tmp_path: Path) -> None:
    """What a trace is stands in it, not in the times of its files."""
    import shutil

    copied = {name: tmp_path / name for name in ("train", "probe")}
    for name, folder in copied.items():
        shutil.copytree(traces[name], folder)
    assert distilled(student, copied, store).folder == distilled(student, traces, store).folder


def test_the_verb_says_how_it_went_and_draws_it(student: Path, traces: dict[str, Path], store: Path, tmp_path: Path) -> None:
    config = tmp_path / "distill.yaml"
    config.write_text("train: {micro_batch: 2, precision: float32}\n")
    words = [
        "distill", "--student", str(student), "--trace", str(traces["train"]), "--held-out", str(traces["probe"]),
        "--check-every", "10", "--steps", "30", "--batch", "4", "--length", "32", "--learning-rate", "3e-3",
        "--config", str(config), "--store", str(store),
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "forward kl" in done.output
    assert "on what was held out" in done.output
    assert "learning.png" in done.output
    assert done.output.strip().endswith("model")
