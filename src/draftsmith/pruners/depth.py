"""Pruner `depth`: which layers to keep, without training, by what we care for: the tokens that the cut would have accepted.

Layers go one by one, each time the one whose loss costs least; a beam keeps several cuts in the race. A try is one pass over
recorded rows, from the layer that is left out on: what lies before it is the same as without it. Where no cut accepts anything
any more, the likelihood it gives the recorded tokens decides. The `cosine` ranking, which most others use, is a baseline."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from draftsmith.core.checkpoints import model_fingerprint
from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import PlanError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import DraftScore
from draftsmith.core.pruning import PruneJob
from draftsmith.core.sampling import DraftMethod
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import digest, read_json, write_json
from draftsmith.engines._scoring import batches_to_score, real_tokens, score_batch
from draftsmith.theory.acceptance import replay, row_chances
from draftsmith.training.sources import Source, load_source, versions
from draftsmith.training.surgery import cut_source

_NOTHING = 1.005  # tokens per step: a cut below it accepts next to nothing


class DepthSettings(StrictConfig):
    """How to search. `lookahead` is the one that tokens per step are counted at. `order` is what an earlier search has found,
    the layers as they go one by one: with it there is none."""

    by: Literal["acceptance", "cosine"] = "acceptance"
    beam: int = Field(1, ge=1)
    lookahead: int = Field(5, ge=1)
    order: tuple[Annotated[int, Field(ge=0)], ...] | None = None


@dataclass(frozen=True)
class Judged:
    """What the recorded rows say of a cut."""

    tokens_per_step: float
    log_likelihood: float  # mean, of a recorded token


class _Replayed(nn.Module):  # type: ignore[misc]
    """Stands where layers were: what came out of them is known already."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self._hidden


class Judge:
    """A source whose layers can be left out, and rows to judge what is left by."""

    def __init__(self, source: Source, job: PruneJob, lookahead: int) -> None:
        self.rows = job.rows
        self._source, self._job, self._lookahead = source, job, lookahead
        self._all = list(source.layers)
        kept = source.shape.hidden * (source.shape.layers + 1)
        self.batches = list(batches_to_score(job.rows, job.engine.batch_size, source.shape.vocabulary, kept))

    def without_each(self, kept: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Judged]]:
        """Every cut that loses one more layer, judged."""
        scores: dict[int, dict[int, DraftScore]] = {at: {} for at in range(len(kept))}
        for batch in self.batches:
            inputs = self.inputs(kept, batch)
            for at in range(len(kept)):
                rest = [_Replayed(inputs[at]), *(self._all[i] for i in kept[at + 1 :])]
                scores[at].update(zip(batch, self._score(rest, batch), strict=True))
        for at in range(len(kept)):
            yield tuple(kept[:at]) + tuple(kept[at + 1 :]), self._judge(scores[at])

    def inputs(self, kept: Sequence[int], batch: list[int]) -> list[Tensor]:
        """One pass over some rows: what went into each layer, and what came out of the last."""
        seen: list[Tensor] = []
        layers = [self._all[i] for i in kept]
        handles = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for layer in layers]
        handles.append(layers[-1].register_forward_hook(lambda _, __, output: seen.append(output)))
        self._score(layers, batch)
        for handle in handles:
            handle.remove()
        return seen

    def close(self) -> None:
        self._source.layers = nn.ModuleList(self._all)

    def _score(self, layers: Sequence[nn.Module], batch: list[int]) -> list[DraftScore]:
        self._source.layers = nn.ModuleList(layers)
        return score_batch(self._source.model, [self.rows[i] for i in batch], self._job.sampling)

    def _judge(self, scores: dict[int, DraftScore]) -> Judged:
        method: DraftMethod = "greedy" if self._job.sampling.is_greedy else "probabilistic"
        chances = [row_chances(row, scores[i], method) for i, row in enumerate(self.rows)]
        lengths = [row.num_output for row in self.rows]
        steps = replay(chances, lengths, [self._lookahead]).steps.sum()
        logs = np.concatenate([scores[i].logprobs[:n] for i, n in enumerate(lengths)])
        return Judged(sum(lengths) / float(steps), float(np.maximum(logs, -100.0).mean()))


def best_layers(judge: Judge, layers: int, wanted: int, beam: int, notes: Path) -> tuple[int, ...]:
    """The best cut found, by leaving out one layer after the other. Rounds that `notes` has are not done again."""
    beams = [tuple(range(layers))]
    with progress("choosing layers", layers - wanted) as bar:
        while len(beams[0]) > wanted:
            path = notes / f"{len(beams[0]) - 1:03d}-layers.json"
            if not path.exists():
                found = {cut: judged for kept in beams for cut, judged in judge.without_each(kept)}
                write_json(path, [{"layers": list(cut), **asdict(found[cut])} for cut in _ranked(found)[:beam]])
            kept_notes = read_json(path)
            beams = [tuple(one["layers"]) for one in kept_notes]
            said = ", ".join(map(str, beams[0]))
            log.info("%d layers (%s): %.3f tokens per step", len(beams[0]), said, kept_notes[0]["tokens_per_step"])
            bar.advance()
    return beams[0]


def _ranked(found: dict[tuple[int, ...], Judged]) -> list[tuple[int, ...]]:
    """The best first: by tokens per step and then by likelihood, or by likelihood alone where nothing is accepted."""
    hopeless = max(one.tokens_per_step for one in found.values()) < _NOTHING
    return sorted(
        found, key=lambda cut: (0.0 if hopeless else found[cut].tokens_per_step, found[cut].log_likelihood), reverse=True
    )


def most_turning(judge: Judge, source: Source, wanted: int) -> tuple[int, ...]:
    """Keep the layers that turn the residual stream most: 1 - cosine between what goes in and what comes out."""
    turned = np.zeros(source.shape.layers)
    for batch in judge.batches:
        inputs = judge.inputs(range(source.shape.layers), batch)
        real = real_tokens([judge.rows[i] for i in batch]).to(inputs[0].device)
        for at, (before, after) in enumerate(pairwise(inputs)):
            cosine = nn.functional.cosine_similarity(before.float(), after.float(), dim=-1)
            turned[at] += float((1 - cosine)[real].sum())
    return tuple(sorted(np.argsort(-turned, kind="stable")[:wanted].tolist()))


def _left(order: Sequence[int], layers: int, wanted: int) -> tuple[int, ...]:
    """Layers that stay when the first of an order have gone."""
    gone = order[: layers - wanted]
    if len(set(gone)) < layers - wanted or any(one >= layers for one in gone):
        raise PlanError(
            f"an order of {len(order)} layers does not lead from {layers} to {wanted}",
            f"name {layers - wanted} different ones of 0 to {layers - 1}, or leave `order` out",
        )
    return tuple(one for one in range(layers) if one not in gone)


def _settings(settings: dict[str, Any]) -> DepthSettings:
    return parse_config(DepthSettings, settings, "the settings of the pruner depth")


def _notes(job: PruneJob, asked: DepthSettings) -> Path:
    """Rounds of a search hang on everything but where it ends: cuts to other depths go on from them."""
    rows = hashlib.sha256()
    for row in job.rows:
        rows.update(np.concatenate([row.prompt_ids, row.output_ids]).tobytes() + row.num_output.to_bytes(8, "little"))
    made_of = [model_fingerprint(job.source), rows.hexdigest(), job.sampling.model_dump(), job.engine.dtype]
    return job.searches / f"depth-{digest([*made_of, asked.model_dump(exclude_none=True), versions()])[:16]}"


def _searched(job: PruneJob, asked: DepthSettings) -> tuple[int, ...]:
    source = load_source(job)
    judge = Judge(source, job, asked.lookahead)
    if asked.by == "cosine":
        kept = most_turning(judge, source, job.wanted.layers)
    else:
        kept = best_layers(judge, source.shape.layers, job.wanted.layers, asked.beam, _notes(job, asked))
    judge.close()
    return kept


class _Depth:
    cuts = ("layers",)
    trains = False
    cut = staticmethod(cut_source)
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        return _settings(settings).model_dump(mode="json", exclude_none=True)

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> None:
        """It does not train."""

    @torch.inference_mode()
    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        asked = _settings(settings)
        if asked.order is not None:
            kept = _left(asked.order, model_shape(job.source).layers, job.wanted.layers)
        else:
            kept = _searched(job, asked)
        return so_far.model_copy(update={"layers": tuple(layer for layer in so_far.layers if layer.index in kept)})


PLUGIN = _Depth()
