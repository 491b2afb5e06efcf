"""The head that is fitted to a cut: nearer to what the source says, and only where it is a weight of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftsmith.core import registry
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import model_shape
from draftsmith.core.trace import TraceRow
from tests.unit.pruners.test_planted import job

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def cuts(asked: PruneJob, folder: Path) -> tuple[Path, Path]:
    """Two of three layers and fewer hidden dimensions: the head as it was, and fitted."""
    whole = KeepPlan.everything(model_shape(asked.source))
    plan = whole.model_copy(update={"layers": whole.layers[:2], "hidden": tuple(range(asked.wanted.hidden))})
    found = folder / "plain", folder / "fitted"
    for kind, model in zip(("width", "refit"), found, strict=True):
        registry.load("pruners", kind).cut(asked, plan, model)
    return found


def logits(model: Path, rows: list[TraceRow]) -> list[np.ndarray]:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        tokens = [torch.tensor([[*row.prompt_ids, *row.output_ids]]) for row in rows]
        return [loaded(one).logits.numpy() for one in tokens]


@pytest.mark.parametrize(("model_type", "hidden"), [("llama", 64), ("llama", 48), ("opt", 64)])
def test_a_fitted_head_says_more_of_what_the_source_says(tmp_path: Path, model_type: str, hidden: int) -> None:
    from tests.tiny import tiny_of

    source = tiny_of(tmp_path / "source", model_type, tied=False)
    asked = job(source, tmp_path / "notes", layers=2, hidden=hidden)
    rng, like = np.random.default_rng(0), asked.rows[-1]
    rows = [replace(like, prompt_ids=rng.integers(4, 60, size=95).astype(np.int32)) for _ in range(16)]
    plain, fitted = cuts(replace(asked, rows=rows[:12]), tmp_path)
    assert model_shape(fitted) == asked.wanted
    own, without, with_it = (logits(model, rows[12:]) for model in (source, plain, fitted))

    def missed(found: list[np.ndarray]) -> float:
        return sum(float(((a - b) ** 2).sum()) for a, b in zip(found, own, strict=True))

    assert missed(with_it) < 0.85 * missed(without)


def test_all_but_the_head_is_the_cut(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from tests.tiny import tiny_of

    asked = job(tiny_of(tmp_path / "source", "llama", tied=False), tmp_path / "notes", layers=2)
    plain, fitted = (
        {k: v for f in model.glob("*.safetensors") for k, v in load_file(f).items()} for model in cuts(asked, tmp_path)
    )
    differing = [name for name in plain if not torch.equal(plain[name], fitted[name])]
    assert differing == ["lm_head.weight"]


def test_a_head_that_is_the_embeddings_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.tiny import tiny_of

    asked = job(tiny_of(tmp_path / "source", "llama", tied=True), tmp_path / "notes", layers=2)
    with caplog.at_level("WARNING"):
        plain, fitted = cuts(asked, tmp_path)
    assert "nothing is fitted" in caplog.text
    assert [f.read_bytes() for f in sorted(plain.glob("*.safetensors"))] == [
        f.read_bytes() for f in sorted(fitted.glob("*.safetensors"))
    ]


def test_too_few_tokens_to_fit_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.tiny import tiny_of

    asked = job(tiny_of(tmp_path / "source", "llama", tied=False), tmp_path / "notes", layers=2)
    with caplog.at_level("WARNING"):
        plain, fitted = cuts(replace(asked, rows=asked.rows[:1]), tmp_path)
    assert "18 recorded tokens cannot tell what 64 dimensions say: the output head stays as it is" in caplog.text
    assert [f.read_bytes() for f in sorted(plain.glob("*.safetensors"))] == [
        f.read_bytes() for f in sorted(fitted.glob("*.safetensors"))
    ]
