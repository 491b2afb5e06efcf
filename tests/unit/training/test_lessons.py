"""Lessons: packed rows do not see each other, chunks change nothing, and the gradient is that of the model as it is."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftsmith.core.trace import TraceRow
from draftsmith.training import lessons
from draftsmith.training.batch import collate, hidden_at
from draftsmith.training.lessons import summed_loss
from draftsmith.training.on_policy import num_written, student_samples
from draftsmith.training.packing import pack_rows
from draftsmith.training.samples import RowDomain, Sample, TextDomain
from tests.tiny import tiny_of

KEPT, LENGTH = 4, 40
CPU = torch.device("cpu")


def rows(count: int = 9) -> list[TraceRow]:
    rng = np.random.default_rng(0)

    def tokens(size: int) -> np.ndarray:
        return rng.integers(4, 60, size).astype(np.int32)

    found = []
    for i in range(count):
        n, prompt = int(rng.integers(3, 12)), int(rng.integers(2, 20))
        tail = 2
        top = np.sort(rng.dirichlet(np.ones(KEPT + 1), size=n + tail)[:, :KEPT])[:, ::-1]
        ids = np.stack([rng.permutation(60)[:KEPT] for _ in range(n + tail)])
        found.append(
            TraceRow(
                f"p{i}", "d", "train", tokens(prompt), tokens(n + tail), n,
                rng.uniform(-3, 0, n + tail).astype(np.float32), "length", 0,
                ids.astype(np.int32).flatten(), np.log(top).astype(np.float32).flatten(),
            )
        )  # fmt: skip
    return found


def packed(folder: Path, length: int = LENGTH) -> RowDomain:
    pack_rows(rows(), length, KEPT, folder)
    return RowDomain(folder, length)


def model_of(folder: Path, model_type: str) -> "torch.nn.Module":
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_of(folder, model_type, tied=True, layers=2))


def test_every_output_is_packed_once_with_what_was_recorded_of_it(tmp_path: Path) -> None:
    domain = packed(tmp_path)
    assert len(domain) < len(rows())
    found: dict[bytes, tuple[list[float], list[int]]] = {}
    for at in range(len(domain)):
        sample = domain.sample(at)
        assert domain.num_asked(at) == len(sample.asked_P)
        for run in collate([sample], CPU).runs:
            tokens = sample.tokens_S[sample.asked_P[run] + 1]
            assert len(set(sample.row_S[sample.asked_P[run]].tolist())) == 1
            found[tokens.astype(np.int32).tobytes()] = (sample.log_p_P[run].tolist(), sample.top_ids_PK[run].flatten().tolist())
    for row in rows():
        log_p, ids = found.pop(row.output_ids[: row.num_output].tobytes())
        assert log_p == row.logprobs[: row.num_output].tolist()
        assert ids == row.top_ids[: row.num_output * KEPT].tolist()
    assert not found


def test_a_row_that_is_too_long_keeps_its_output_and_the_end_of_its_prompt(tmp_path: Path) -> None:
    (row,) = (one for one in rows() if len(one.prompt_ids) == max(len(other.prompt_ids) for other in rows()))
    pack_rows([row], 14, KEPT, tmp_path)
    tokens = RowDomain(tmp_path, 14).sample(0).tokens_S
    expected = np.concatenate([row.prompt_ids, row.output_ids[: row.num_output]])[-14:]
    assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "opt"])
def test_packed_rows_do_not_see_each_other(tmp_path: Path, model_type: str) -> None:
    model, domain = model_of(tmp_path / "model", model_type), packed(tmp_path / "rows")
    batch = collate([domain.sample(at) for at in range(len(domain))], CPU)
    with torch.no_grad():
        together = model.get_output_embeddings()(hidden_at(model, batch))
        alone = {}
        for row in rows():
            ids = np.concatenate([row.prompt_ids, row.output_ids[: row.num_output]]).astype(np.int64)
            logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0, len(row.prompt_ids) - 1 : -1]
            alone[row.output_ids[: row.num_output].tobytes()] = logits
    for run in batch.runs:
        key = batch.wanted_P[run].numpy().astype(np.int32).tobytes()
        torch.testing.assert_close(together[run], alone[key], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("loss", sorted(lessons.LOSSES))
@pytest.mark.parametrize("taught_by", ["records", "teacher"])
def test_chunks_change_neither_loss_nor_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, taught_by: str
) -> None:
    model, domain = model_of(tmp_path / "model", "llama"), packed(tmp_path / "rows")
    teacher = model_of(tmp_path / "teacher", "llama").eval() if taught_by == "teacher" else None
    if teacher is not None:
        torch.nn.init.normal_(teacher.get_input_embeddings().weight, std=0.3)
    batch = collate([domain.sample(at) for at in range(len(domain))], CPU)

    def found(chunk: int) -> tuple[float, list["torch.Tensor"]]:
        monkeypatch.setattr(lessons, "LOGITS", 64 * chunk)
        value = summed_loss(model, batch, loss, teacher)
        return value.item(), list(torch.autograd.grad(value, list(model.parameters())))

    (whole, slopes), (parts, slopes_of_parts) = found(10_000), found(7)
    assert parts == pytest.approx(whole, rel=1e-5)
    for one, other in zip(slopes, slopes_of_parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_text_is_predicted_as_transformers_does(tmp_path: Path) -> None:
    model = model_of(tmp_path, "llama")
    domain = TextDomain(np.random.default_rng(0).integers(4, 60, size=90).astype(np.uint32), 30)
    batch = collate([domain.sample(at) for at in range(3)], CPU)
    assert batch.mask_B1SS is None
    theirs = model(input_ids=batch.tokens_BS, labels=batch.tokens_BS).loss
    ours = summed_loss(model, batch) / len(batch.asked_P)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(*(torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_text_and_recorded_rows_may_be_in_one_batch(tmp_path: Path) -> None:
    model, domain = model_of(tmp_path / "model", "llama"), packed(tmp_path / "rows")
    text = TextDomain(np.random.default_rng(0).integers(4, 60, size=LENGTH).astype(np.uint32), LENGTH)
    both = collate([domain.sample(0), text.sample(0)], CPU)
    apart = sum(summed_loss(model, collate([one], CPU)) for one in (domain.sample(0), text.sample(0)))
    torch.testing.assert_close(summed_loss(model, both), apart)


def test_what_a_student_writes_does_not_hang_on_who_is_beside_it(tmp_path: Path) -> None:
    model, domain = model_of(tmp_path / "model", "llama"), packed(tmp_path / "rows")
    samples = [domain.sample(at) for at in range(3)]
    together = student_samples(model, samples, [(0, n) for n in range(3)], CPU)
    for at, sample in enumerate(samples):
        (alone,) = student_samples(model, [sample], [(0, at)], CPU)
        assert alone.tokens_S.tolist() == together[at].tokens_S.tolist()
    other = student_samples(model, samples, [(1, n) for n in range(3)], CPU)
    assert any(a.tokens_S.tolist() != b.tokens_S.tolist() for a, b in zip(together, other, strict=True))
    assert all(len(one.asked_P) == num_written(LENGTH) for one in together)


def test_nothing_is_asked_behind_the_end_of_what_a_student_writes(tmp_path: Path) -> None:
    model, domain = model_of(tmp_path / "model", "llama"), packed(tmp_path / "rows")
    samples = [domain.sample(at) for at in range(3)]
    seeds = [(0, n) for n in range(3)]
    whole = student_samples(model, samples, seeds, CPU)
    end = int(whole[0].tokens_S[whole[0].asked_P[3] + 1])
    for before, after in zip(whole, student_samples(model, samples, seeds, CPU, {end}), strict=True):
        written = before.tokens_S[before.asked_P + 1].tolist()
        expected = written[: written.index(end) + 1] if end in written else written
        assert after.tokens_S[after.asked_P + 1].tolist() == expected


def test_what_is_drawn_has_the_chances_that_the_student_gives_it() -> None:
    from draftsmith.training.on_policy import _draw

    chances = torch.tensor([0.5, 0.2, 0.0, 0.3])
    drawn = _draw(chances.log().repeat(4000, 1), [np.random.default_rng((7, n)) for n in range(4000)])
    assert torch.bincount(drawn, minlength=4) / 4000 == pytest.approx(chances.numpy(), abs=0.03)


def test_a_student_continues_the_prompt_of_recorded_output_and_half_of_a_text() -> None:
    from draftsmith.training.on_policy import _prompt

    tokens = np.arange(10, 20, dtype=np.uint32)
    assert _prompt(Sample(tokens, np.arange(9))).tolist() == [10, 11, 12, 13, 14]
    assert _prompt(Sample(tokens, np.array([2, 3]), np.zeros(10, np.uint32))).tolist() == [10, 11, 12]
