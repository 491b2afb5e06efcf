"""Training on several ranks: the same losses on any number of them, and no step lost or changed by a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

STEPS = 8


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import tiny_of

    return tiny_of(tmp_path_factory.mktemp("source"), "llama", tied=True, layers=2)


def run(source: Path, folder: Path, ranks: int, kill: str = "never") -> int:
    folder.mkdir(exist_ok=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = ["-m", "tests.unit.training.trainer", str(source), str(folder), str(STEPS), kill]
    done = subprocess.run([*launch, *words], capture_output=True, text=True, env=_environment(), timeout=240)
    if kill == "never":
        assert done.returncode == 0, done.stderr[-3000:]
    return done.returncode


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


def losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def weights(folder: Path) -> dict[str, "torch.Tensor"]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(folder / "weights.safetensors")
    return found


@pytest.fixture(scope="module")
def two(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, uninterrupted."""
    folder = tmp_path_factory.mktemp("two")
    run(source, folder, 2)
    return folder


@pytest.mark.parametrize("ranks", [1, 4])
def test_any_number_of_ranks_has_the_same_losses(source: Path, two: Path, tmp_path: Path, ranks: int) -> None:
    run(source, tmp_path, ranks)
    assert list(losses(tmp_path)) == list(range(STEPS))
    assert losses(tmp_path) == pytest.approx(losses(two), rel=1e-4)
    assert losses(two)[STEPS - 1] < losses(two)[0]


def test_a_killed_run_ends_in_the_same_weights(source: Path, two: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path, 2, "1@6") != 0
    assert not (tmp_path / "weights.safetensors").exists()
    run(source, tmp_path, 2)
    ours, theirs = weights(tmp_path), weights(two)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert losses(tmp_path) == losses(two)


def test_a_checkpoint_goes_on_with_another_number_of_ranks(source: Path, two: Path, tmp_path: Path) -> None:
    run(source, tmp_path, 2, "1@4")
    run(source, tmp_path, 4)
    assert losses(tmp_path) == pytest.approx(losses(two), rel=1e-4)
    for name, weight in weights(tmp_path).items():
        torch.testing.assert_close(weight, weights(two)[name], rtol=1e-3, atol=1e-4)


def test_a_signal_saves_where_the_run_is(source: Path, two: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path, 2, "1@4:TERM") == 0
    assert (tmp_path / "checkpoints" / "step-00000005" / ".metadata").exists()
    run(source, tmp_path, 2)
    assert len((tmp_path / "losses.jsonl").read_text().splitlines()) == STEPS
    assert all(torch.equal(weights(tmp_path)[name], weight) for name, weight in weights(two).items())


@pytest.mark.parametrize(("batch", "ranks", "micro", "expected"), [(16, 1, 4, (16, 4)), (16, 8, 4, (2, 2)), (12, 2, 4, (6, 3))])
def test_a_rank_passes_what_divides_its_share(batch: int, ranks: int, micro: int, expected: tuple[int, int]) -> None:
    from draftsmith.training.loop import TrainSettings, shares

    assert shares(TrainSettings(batch=batch, micro_batch=micro), ranks) == expected


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    from draftsmith.core.errors import ConfigError
    from draftsmith.training.loop import TrainSettings, shares

    with pytest.raises(ConfigError, match="a batch of 6 cannot be split over 4 ranks"):
        shares(TrainSettings(batch=6), 4)
