"""Speculative decoding, readable: draft, verify, accept, for a batch whose rows advance at their own pace.

Lossless by construction: with greedy sampling a proposal stands if it is the target's argmax; otherwise it stands with chance
min(1, p/q), and a rejected one is replaced by a draw from the positive part of p - q (Leviathan et al. 2023, Chen et al. 2023).
With lookahead 0 this is plain decoding: that is how traces are recorded. Shapes: B rows, S slots, K lookahead, V vocabulary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draftsmith.core.protocols import PHASES, Limits, NgramDraft, Request
from draftsmith.core.sampling import DraftMethod, Sampling
from draftsmith.core.trace import FinishReason
from draftsmith.engines._choose import draw, fit_width, process
from draftsmith.engines._clock import now
from draftsmith.engines._slots import SlotModel
from draftsmith.theory.ngram import NgramIndex


@dataclass
class Clocks:
    """Seconds of the prefill, and of each step by phase: draft, verify, and the overhead of choosing and bookkeeping."""

    prefill: float = 0.0
    steps: list[dict[str, float]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        began = now(device)
        yield
        if name == "prefill":
            self.prefill += now(device) - began
        else:
            self.steps[-1][name] += now(device) - began

    def next_step(self) -> None:
        self.steps.append(dict.fromkeys(PHASES, 0.0))

    def totals(self) -> dict[str, float]:
        phases = {name: sum(step[name] for step in self.steps) for name in PHASES}
        return {"prefill": self.prefill, **phases}


@dataclass
class Proposal:
    """`tokens_BK`, of which each row's first `counts_B` are meant; `probs_BKV` is None for a draft that does not sample."""

    tokens_BK: Tensor
    counts_B: Tensor
    probs_BKV: Tensor | None


class Proposer(Protocol):
    def start(self, tokens_BS: Tensor, lengths_B: Tensor) -> None: ...
    def propose(self, tokens_BS: Tensor, lengths_B: Tensor, lookahead: int, uniform_BK: Tensor) -> Proposal: ...
    def keep(self, rows: Tensor) -> None: ...


class ModelProposer:
    """A draft model, asked token by token."""

    def __init__(self, model: SlotModel, method: DraftMethod, sampling: Sampling, width: int) -> None:
        self.model, self.sampling, self.width = model, sampling, width
        self.samples = method == "probabilistic" and not sampling.is_greedy
        self.known_B = torch.empty(0)  # per row, how many of its tokens the draft has in its slots

    def start(self, tokens_BS: Tensor, lengths_B: Tensor) -> None:
        self.model.prefill(tokens_BS, lengths_B)
        self.known_B = lengths_B - 1

    def propose(self, tokens_BS: Tensor, lengths_B: Tensor, lookahead: int, uniform_BK: Tensor) -> Proposal:
        # A row's last token is new. After full acceptance the last proposal is too: it was proposed, but never fed. Every step
        # feeds both, so that its time does not hang on what was accepted; a known one writes the same values into its slot.
        self.known_B = torch.minimum(self.known_B, lengths_B - min(2, int(lengths_B.min())))
        behind = int((lengths_B - self.known_B).max())
        positions = lengths_B[:, None] + torch.arange(-behind, 0, device=lengths_B.device)
        new = tokens_BS.gather(1, positions)
        proposed, probs = [], []
        for i in range(lookahead):
            logits_BV = fit_width(self.model.forward(new, positions, keep_logits=1)[:, -1], self.width)
            if self.samples:
                probs.append(process(logits_BV, self.sampling).softmax(dim=-1))
                token_B = draw(probs[-1], uniform_BK[:, i])
            else:
                token_B = logits_BV.argmax(dim=-1)
            proposed.append(token_B)
            new, positions = token_B[:, None], (lengths_B + i)[:, None]
        self.known_B = lengths_B + lookahead - 1
        counts_B = torch.full_like(lengths_B, lookahead)
        return Proposal(torch.stack(proposed, dim=1), counts_B, torch.stack(probs, dim=1) if probs else None)

    def keep(self, rows: Tensor) -> None:
        self.model.keep(rows)
        self.known_B = self.known_B[rows]


class FreeProposer:
    """Proposes token 0, again and again, at no cost: what is left of a step is verification."""

    def start(self, tokens_BS: Tensor, lengths_B: Tensor) -> None:
        pass

    def propose(self, tokens_BS: Tensor, lengths_B: Tensor, lookahead: int, uniform_BK: Tensor) -> Proposal:
        tokens_BK = torch.zeros((len(lengths_B), lookahead), dtype=torch.long, device=tokens_BS.device)
        return Proposal(tokens_BK, torch.full_like(lengths_B, lookahead), None)

    def keep(self, rows: Tensor) -> None:
        pass


class NgramProposer:
    """Prompt lookup: no model, no probabilities."""

    def __init__(self, config: NgramDraft) -> None:
        self.config = config
        self.indexes: list[tuple[NgramIndex, int]] = []

    def start(self, tokens_BS: Tensor, lengths_B: Tensor) -> None:
        empty = np.zeros(0, dtype=np.int32)
        self.indexes = [(NgramIndex(empty, self.config.max_ngram, self.config.min_ngram), 0) for _ in lengths_B]

    def propose(self, tokens_BS: Tensor, lengths_B: Tensor, lookahead: int, uniform_BK: Tensor) -> Proposal:
        tokens_BK = torch.zeros((len(lengths_B), lookahead), dtype=torch.long)
        counts_B = torch.zeros(len(lengths_B), dtype=torch.long)
        for row, ((index, known), length) in enumerate(zip(self.indexes, lengths_B.tolist(), strict=True)):
            index.extend(tokens_BS[row, known:length].cpu().numpy())
            self.indexes[row] = (index, length)
            found = index.propose(lookahead)
            counts_B[row] = len(found)
            tokens_BK[row, : len(found)] = torch.tensor(found, dtype=torch.long)
        return Proposal(tokens_BK.to(tokens_BS.device), counts_B.to(tokens_BS.device), None)

    def keep(self, rows: Tensor) -> None:
        self.indexes = [self.indexes[row] for row in rows.tolist()]


@dataclass
class Written:
    """What one row became."""

    tokens: list[int] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    num_output: int | None = None  # the logical end, once reached; what follows is the tail
    finish_reason: FinishReason = "length"
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)

    def append(self, token: int, limits: Limits) -> bool:
        """Add a token; True when nothing more is wanted."""
        self.tokens.append(token)
        if self.num_output is None:
            if token in limits.eos_ids:
                self.num_output, self.finish_reason = len(self.tokens), "eos"
            elif len(self.tokens) == limits.max_new_tokens:
                self.num_output = len(self.tokens)
        return self.num_output is not None and len(self.tokens) == self.num_output + limits.tail


def decode(
    target: SlotModel,
    proposer: Proposer | None,
    lookahead: int,
    requests: Sequence[Request],
    sampling: Sampling,
    limits: Limits,
    clocks: Clocks,
    keep_logprobs: bool = False,
) -> list[Written]:
    """Continue a batch of prompts until all rows are done."""
    decoding = Decoding(target, proposer, requests, sampling, limits, clocks, lookahead)
    decoding.prefill()
    while len(decoding.rows):
        decoding.step(lookahead, keep_logprobs)
    return decoding.written


class Decoding:
    """A batch of prompts on its way. `rows` says which request each row of the batch is; a row that is done leaves."""

    def __init__(
        self,
        target: SlotModel,
        proposer: Proposer | None,
        requests: Sequence[Request],
        sampling: Sampling,
        limits: Limits,
        clocks: Clocks,
        most_lookahead: int,
    ) -> None:
        self.target, self.proposer, self.sampling, self.limits, self.clocks = target, proposer, sampling, limits, clocks
        self.most, self.device = limits.max_new_tokens + limits.tail, target.device
        self.written = [Written() for _ in requests]
        self.rngs = [np.random.default_rng(request.seed) for request in requests]
        self.lengths_B = torch.tensor([len(request.prompt_ids) for request in requests], device=self.device)
        slots = int(self.lengths_B.max()) + self.most + most_lookahead
        self.tokens_BS = torch.zeros((len(requests), slots), dtype=torch.long, device=self.device)
        for row, request in enumerate(requests):
            self.tokens_BS[row, : len(request.prompt_ids)] = torch.from_numpy(np.asarray(request.prompt_ids, dtype=np.int64))
        self.rows = torch.arange(len(requests))

    def prefill(self) -> None:
        with self.clocks.phase("prefill", self.device):
            self.target.prefill(self.tokens_BS, self.lengths_B)
            if self.proposer:
                self.proposer.start(self.tokens_BS, self.lengths_B)

    def step(self, lookahead: int, keep_logprobs: bool = False) -> None:
        """Propose up to `lookahead` tokens, verify them in one pass, keep what stands."""
        rows, lengths_B, tokens_BS, device = self.rows.tolist(), self.lengths_B, self.tokens_BS, self.device
        self.clocks.next_step()
        with self.clocks.phase("overhead", device):
            left_B = torch.tensor([self.most - len(self.written[row].tokens) for row in rows], device=device)
            k = min(lookahead, int(left_B.max()) - 1)
            # Every row draws the same number of variates a step whatever its neighbours do: its output is its own.
            uniform = torch.from_numpy(np.stack([self.rngs[row].random(2 * lookahead + 1) for row in rows])).to(device)
        with self.clocks.phase("draft", device):
            if self.proposer and k:
                proposal = self.proposer.propose(tokens_BS, lengths_B, k, uniform[:, :lookahead])
                proposal.counts_B = torch.minimum(proposal.counts_B, left_B - 1)
            else:
                proposal = Proposal(tokens_BS[:, :0], torch.zeros_like(lengths_B), None)
                k = 0
        with self.clocks.phase("verify", device):
            positions = lengths_B[:, None] + torch.arange(-1, k, device=device)
            tokens_BS.scatter_(1, positions[:, 1:], proposal.tokens_BK)
            logits_BKV = self.target.forward(tokens_BS.gather(1, positions), positions, keep_logits=k + 1)
        with self.clocks.phase("overhead", device):
            accepted_B, next_B = _accept(logits_BKV, proposal, self.sampling, uniform[:, lookahead:])
            tokens_BS.scatter_(1, (lengths_B + accepted_B)[:, None], next_B[:, None])
            if keep_logprobs:
                _note_logprobs([self.written[row] for row in rows], logits_BKV, next_B, self.sampling, self.limits)
            self._write(accepted_B + 1)

    def _write(self, advance_B: Tensor) -> None:
        """Note each row's new tokens, and drop the rows that are done."""
        going_on = []
        for at, row in enumerate(self.rows.tolist()):
            begin, count, done = int(self.lengths_B[at]), 0, False
            for token in self.tokens_BS[at, begin : begin + int(advance_B[at])].tolist():
                count += 1
                if done := self.written[row].append(token, self.limits):
                    break
            self.written[row].step_tokens.append(count)
            if not done:
                going_on.append(at)
        self.lengths_B = self.lengths_B + advance_B
        if len(going_on) == len(self.rows):
            return
        kept = torch.tensor(_closed_up(going_on), dtype=torch.long)
        on_device = kept.to(self.device)
        self.rows, self.lengths_B, self.tokens_BS = self.rows[kept], self.lengths_B[on_device], self.tokens_BS[on_device]
        if len(self.rows):
            self.target.keep(on_device)
            if self.proposer:
                self.proposer.keep(on_device)


def _closed_up(going_on: list[int]) -> list[int]:
    """The rows that go on, with holes filled from behind: a row that leaves costs the copy of one row, not of all."""
    stay = set(going_on)
    behind = [row for row in going_on if row >= len(going_on)]
    return [at if at in stay else behind.pop() for at in range(len(going_on))]


def _accept(logits_BKV: Tensor, proposal: Proposal, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """How many proposals stand in each row, and the target's own token after them. `logits_BKV` has K + 1 positions."""
    batch, k = proposal.tokens_BK.shape
    meant_BK = torch.arange(k, device=logits_BKV.device) < proposal.counts_B[:, None]
    if sampling.is_greedy:
        best = logits_BKV.argmax(dim=-1)
        stands_BK = (best[:, :k] == proposal.tokens_BK) & meant_BK
        accepted_B = stands_BK.long().cumprod(dim=1).sum(dim=1)
        return accepted_B, best.gather(1, accepted_B[:, None])[:, 0]
    p = process(logits_BKV, sampling).softmax(dim=-1)
    p_BK = p[:, :k].gather(2, proposal.tokens_BK[:, :, None])[:, :, 0]
    if proposal.probs_BKV is None:  # a draft that does not sample is certain of its token
        q_BK = torch.ones_like(p_BK)
    else:
        q_BK = proposal.probs_BKV.gather(2, proposal.tokens_BK[:, :, None])[:, :, 0]
    stands_BK = (uniform[:, :k] * q_BK < p_BK) & meant_BK
    accepted_B = stands_BK.long().cumprod(dim=1).sum(dim=1)
    weights_BV = p[torch.arange(batch, device=p.device), accepted_B]
    refused = torch.nonzero(accepted_B < proposal.counts_B)[:, 0]
    if len(refused):  # draw from what p has more of than q; everywhere else the draw is from p itself
        at = accepted_B[refused]
        if proposal.probs_BKV is None:
            weights_BV[refused, proposal.tokens_BK[refused, at]] = 0.0
        else:
            weights_BV[refused] = (weights_BV[refused] - proposal.probs_BKV[refused, at]).clamp(min=0.0)
    return accepted_B, draw(weights_BV, uniform[:, -1])


def _note_logprobs(written: list[Written], logits_BKV: Tensor, next_B: Tensor, sampling: Sampling, limits: Limits) -> None:
    """Keep the processed log-probability of each new token (plain decoding: one a step), and the best few."""
    logprobs_BV = process(logits_BKV[:, -1], sampling).log_softmax(dim=-1)
    chosen = logprobs_BV.gather(1, next_B[:, None])[:, 0].tolist()
    top = logprobs_BV.topk(limits.top_logprobs, dim=-1) if limits.top_logprobs else None
    for at, row in enumerate(written):
        row.logprobs.append(chosen[at])
        if top is not None:
            row.top_ids.extend(top.indices[at].tolist())
            row.top_logprobs.extend(top.values[at].tolist())
