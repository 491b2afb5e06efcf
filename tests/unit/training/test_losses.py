"""Losses: zero where the draft is the target, what their formulas say elsewhere, and the recorded few tokens a bound on all."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftsmith.training.losses import LOSSES, Views, argmax_miss, forward_kl, reverse_kl, total_variation, views

DIVERGENCES = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation")


def logits(seed: int, rows: int = 6, width: int = 20) -> "torch.Tensor":
    return 2.0 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def beside(student: "torch.Tensor", teacher: "torch.Tensor", kept: int | None = None) -> "views":
    wanted = torch.zeros(len(student), dtype=torch.long)
    if kept is None:
        return views(student, wanted, teacher)
    top = teacher.log_softmax(-1).topk(kept)
    return views(student, wanted, top_ids_NK=top.indices, top_log_p_NK=top.values)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("kept", [None, 4])
def test_a_draft_that_is_the_target_loses_nothing(name: str, kept: int | None) -> None:
    found = LOSSES[name](beside(logits(0), logits(0), kept))
    torch.testing.assert_close(found, torch.zeros(6), atol=1e-5, rtol=0)


def test_they_are_what_their_formulas_say() -> None:
    student, teacher = logits(0), logits(1)
    p, q = teacher.softmax(-1), student.softmax(-1)
    said = beside(student, teacher)
    torch.testing.assert_close(forward_kl(said), (p * (p / q).log()).sum(-1))
    torch.testing.assert_close(reverse_kl(said), (q * (q / p).log()).sum(-1))
    torch.testing.assert_close(total_variation(said), 1.0 - torch.minimum(p, q).sum(-1))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_recorded_few_are_a_bound_from_below_that_gets_tighter(name: str) -> None:
    """Seeing several tokens as one cannot make two distributions differ more."""
    few, more, all_ = (LOSSES[name](beside(logits(0), logits(1), kept)) for kept in (3, 10, None))
    assert (few <= more + 1e-5).all()
    assert (more <= all_ + 1e-5).all()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_sampler_that_cut_the_tail_off_leaves_a_number(name: str) -> None:
    teacher = logits(1)
    teacher[:, 2:] = -torch.inf
    found = LOSSES[name](beside(logits(0), teacher, 4))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("name", ["cross_entropy", *DIVERGENCES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_few_tokens_is_pytorchs_own(name: str, dtype: "torch.dtype") -> None:
    teacher = logits(1)
    top = teacher.log_softmax(-1).topk(4)
    ours, theirs = (logits(0).to(dtype).requires_grad_() for _ in range(2))
    LOSSES[name](beside(ours, teacher, 4)).sum().backward()
    log_q = theirs.float().log_softmax(-1)
    log_q_few = log_q.gather(1, top.indices)
    expected = LOSSES[name](Views(log_q[:, 0], with_others(top.values), with_others(log_q_few), others_last=True))
    expected.sum().backward()
    assert ours.grad.dtype == dtype
    torch.testing.assert_close(ours.grad, theirs.grad)


def with_others(log_few: "torch.Tensor") -> "torch.Tensor":
    return torch.cat([log_few, (1.0 - log_few.exp().sum(-1, keepdim=True)).log()], dim=-1)


def test_a_certain_draft_misses_what_the_target_does_not_write() -> None:
    teacher = logits(1)
    p = teacher.softmax(-1)
    for token in range(3):
        certain = torch.zeros_like(teacher)
        certain[:, token] = 30.0
        torch.testing.assert_close(argmax_miss(beside(certain, teacher)), 1.0 - p[:, token])


def test_all_others_are_no_token_to_propose() -> None:
    """A draft whose best token was not among those recorded is as good as rejected, however likely all others are together."""
    teacher = torch.zeros(1, 20)
    student = torch.zeros(1, 20)
    recorded = teacher.log_softmax(-1).topk(2).indices[0].tolist()
    student[0, next(token for token in range(20) if token not in recorded)] = 30.0
    assert float(argmax_miss(beside(student, teacher, 2))) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_has_a_slope_towards_the_target(name: str) -> None:
    student, teacher = logits(0).requires_grad_(), logits(1)
    wanted = teacher.argmax(-1)
    loss = LOSSES[name](views(student, wanted, teacher)).sum()
    (slope,) = torch.autograd.grad(loss, student)
    after = LOSSES[name](views(student - 0.01 * slope, wanted, teacher)).sum()
    assert after < loss


def test_a_head_with_padded_rows_is_compared_on_the_rows_that_both_have() -> None:
    said = beside(logits(0, width=20), logits(1, width=24))
    assert said.log_p_NB.shape == said.log_q_NB.shape == (6, 20)
