"""Training in rounds: many shapes a little, some of them more, one to the end (successive halving, with a law in between).

The first three shapes are given; after them `design` says what to try. How long a shape may be trained follows from the time
that is left and the speed so far."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from draftsmith.core.errors import TrainingError
from draftsmith.core.families import family_of
from draftsmith.core.log import log
from draftsmith.core.protocols import ModelDraft
from draftsmith.core.pruning import PrunerChoice, WantedShape
from draftsmith.core.records import Design, DistilledCheckpoint
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import read_json, read_record
from draftsmith.core.trace import TraceReader
from draftsmith.forge.ground import LOOKAHEADS, Ground
from draftsmith.stages.design import DesignConfig, ProbeRecords, design
from draftsmith.stages.distill import DistillConfig, distill
from draftsmith.stages.evaluate import EvaluateConfig, evaluate
from draftsmith.stages.prune import PruneConfig, prune
from draftsmith.theory.latency import shape_arrays
from draftsmith.theory.search import flops_per_token, half_as_wide

_SHARES = (0.25, 0.25, 0.5)  # of the time left when training begins: many shapes, some, and the last one (with its equal)
_EPOCHS = 4  # text read so often teaches nearly as much as new text (Muennighoff et al. 2023)
_BUSY = 0.85  # of the time for training is spent in steps
_SEARCH = 0.1  # of the steps, for every learning rate that is tried
_LEAST_STEPS = 4
_LOOK_TOKENS = 400_000  # at least, between looks at the probe split: in a short run they would take longer than the training
_LIVE_SHARE = 0.15  # of the whole time, kept for live runs
_SIZES = ("layers", "heads", "kv_heads", "hidden", "intermediate")


@dataclass(frozen=True)
class Trained:
    """A shape that was trained, and how it did."""

    shape: Shape
    cut: Path
    checkpoint: Path
    scorecard: Path

    @property
    def model(self) -> Path:
        return self.checkpoint / "model"

    @property
    def record(self) -> DistilledCheckpoint:
        return read_record(DistilledCheckpoint, self.checkpoint)

    @property
    def flops_per_second(self) -> float:
        """As its training went, whenever that was."""
        lines = (self.checkpoint / "training" / "training.jsonl").read_text().splitlines()
        speeds = [json.loads(line)["tokens_per_second"] for line in lines]
        return float(np.median(speeds[1:] or speeds)) * _flops(self.shape)


@dataclass
class Rounds:
    """What was trained so far, in order."""

    ground: Ground
    trained: list[Trained] = field(default_factory=list)
    rate: float | None = None  # of probes

    def go(self) -> Trained:
        """All three rounds; the last shape, trained to the end."""
        decide, tried = self.ground.decisions.decide, self.ground.config.shapes_tried
        for place in range(tried[0]):
            self._train(decide(f"shape {place}", partial(self._first_shape, place)), 0)
        better: list[dict[str, int]] = []
        for place in range(tried[1]):
            better.append(decide(f"better shape {place}", partial(self._designed, tuple(better))))
            self._train(better[-1], 1)
        return self._train(decide("best shape", self._designed), 2)

    def design(self) -> Design:
        """What is expected of every shape, given what was trained so far."""
        ground, config = self.ground, self.ground.config
        asked = DesignConfig(
            source=str(ground.source),
            profile=str(ground.profile),
            shapes=str(ground.times),
            training_flops=self._flops_of_the_last(),
            most_tokens=self._worth_learning,
            probes=tuple(ProbeRecords(checkpoint=str(one.checkpoint), scorecard=str(one.scorecard)) for one in self.trained),
            batches=config.batches,
            context=config.context,
            tensor_parallel=config.ranks,
            most_layers=config.most_layers,
        )
        return read_record(Design, design(asked, ground.store))

    def teach(self, sizes: Mapping[str, int], name: str, steps: int, rate: float | None = None) -> Trained:
        """Cut a shape, train it so many steps, replay it. Without a learning rate, search for one in short runs first."""
        decisions = self.ground.decisions
        cut = decisions.timed(f"cut {name}", lambda: self._cut(sizes))
        if rate is None:
            rate = decisions.decide(f"learning rate of {name}", lambda: self._best_rate(cut, name, steps))
        checkpoint = self._distilled(cut, f"train {name}", steps, rate)
        shape = read_record(DistilledCheckpoint, checkpoint).shape
        card = decisions.timed(f"replay {name}", lambda: replayed(self.ground, checkpoint / "model"))
        return Trained(shape, cut, checkpoint, card)

    def _best_rate(self, cut: Path, name: str, steps: int) -> float:
        """By the tokens per step that a tenth of the training reaches; where they are alike, by the loss."""
        rates = self.ground.config.rates
        if len(rates) == 1:
            return rates[0]
        few = min(steps, max(self.ground.config.first_steps, round(steps * _SEARCH)))
        reached = {rate: self._reached(cut, f"search a rate: {name}, {rate:g}", few, rate) for rate in rates}
        return max(rates, key=lambda rate: reached[rate])

    def _reached(self, cut: Path, what: str, steps: int, rate: float) -> tuple[float, float]:
        """Tokens per step on the probe split, and how low the loss is; nothing if the rate was so high that training went
        astray."""
        try:
            end = read_record(DistilledCheckpoint, self._distilled(cut, what, steps, rate)).curve[-1]
        except TrainingError as error:
            log.warning("%s: %s", what, error.problem)
            return 0.0, 0.0
        return end.tokens_per_step or 0.0, -end.loss

    def _distilled(self, cut: Path, what: str, steps: int, rate: float) -> Path:
        ground, config = self.ground, self.ground.config
        asked = DistillConfig(
            student=str(cut / "model"),
            trace=str(ground.train),
            held_out=str(ground.probe),
            loss=config.loss,
            check_every=max(-(-_LOOK_TOKENS // config.step_tokens), steps // 10),
            train={
                "save_every": max(1, steps // 10),
                **config.learning,
                "steps": steps,
                "warmup_steps": max(1, steps // 20),
                "learning_rate": rate,
            },
        )
        return ground.decisions.timed(what, lambda: distill(asked, ground.store))

    def _train(self, sizes: Mapping[str, int], round_: int) -> Trained:
        """Probes share the learning rate that was best for the first of them; the last shape has a search of its own."""
        decide = self.ground.decisions.decide
        name = f"{', '.join(f'{sizes[size]} {size}' for size in _SIZES)}, round {round_}"
        steps = decide(f"steps of {name}", lambda: self._steps(sizes, round_))
        shared = self.rate if round_ < 2 else None
        self.trained.append(self.teach(sizes, name, steps, shared))
        if self.rate is None:
            self.rate = decide(f"learning rate of {name}", lambda: self.ground.config.rates[0])
        return self.trained[-1]

    def _first_shape(self, place: int) -> dict[str, int]:
        """Two depths at full width, and the first of them at half the width, so that both slopes are measured before anything
        is said of shapes far away; after them, or where there is but one depth, whatever `design` is most curious about."""
        source = self.ground.source
        whole = model_shape(source)
        most = self.ground.config.most_layers or whole.layers
        deeper = min(most, max(1, round(whole.layers / 3)))
        shallow = max(1, min(round(whole.layers / 8), deeper // 2))
        if place == 0 or (place == 1 and shallow < deeper):
            return sizes_of(whole.model_copy(update={"layers": (shallow, deeper)[place]}))
        if place == 2:
            rule = family_of(read_json(source / "config.json"), str(source)).hidden_rule
            return sizes_of(half_as_wide(whole, rule, shallow, self.ground.config.ranks))
        return sizes_of(self.design().next_probe.shape)

    def _designed(self, but: Sequence[Mapping[str, int]] = ()) -> dict[str, int]:
        """The shape that is expected to be best, of those that were not had in this round."""
        best = [sizes_of(one.shape) for one in self.design().by_depth]
        return next((sizes for sizes in best if sizes not in but), best[0])

    def _cut(self, sizes: Mapping[str, int]) -> Path:
        ground = self.ground
        asked = PruneConfig(
            source=str(ground.source),
            trace=str(ground.train),
            shape=WantedShape(**sizes),
            pruners=cut_by(ground.config.layer_order, sizes, model_shape(ground.source)),
            num_rows=ground.config.search_rows,
            engine=ground.config.scoring,
        )
        return prune(asked, ground.store)

    def _steps(self, sizes: Mapping[str, int], round_: int) -> int:
        """As many as this shape's part of the time that is left allows. Of the last one's a part goes into searching its
        learning rate."""
        config = self.ground.config
        if not self.trained:
            return config.first_steps
        shape = model_shape(self.ground.source).model_copy(update=dict(sizes))
        steps = self._flops_of_the_next(round_) / _flops(shape) / config.step_tokens
        searches = len(config.rates) if round_ == 2 and len(config.rates) > 1 else 0
        steps = int(max(min(steps - searches * config.first_steps, steps / (1 + _SEARCH * searches)), 0))
        if steps < config.first_steps:
            spent = self.ground.decisions.seconds() / 60
            log.warning(
                "there is time for %d steps of training only: %.0f of %.0f minutes are gone. "
                "With a larger budget the same command goes on from what was made in them",
                max(_LEAST_STEPS, steps), spent, 60 * config.hours,
            )  # fmt: skip
        return max(_LEAST_STEPS, steps)

    def _flops_of_the_next(self, round_: int) -> float:
        """What the training of the next shape of a round may take, at the speed of those so far, less what cutting and
        replaying take beside it."""
        return self.seconds_of_the_next(round_) * _BUSY * float(np.mean([one.flops_per_second for one in self.trained]))

    def seconds_of_the_next(self, round_: int) -> float:
        """Its share of the time that is left, but for live runs: where parts took longer than was thought, those to come have
        less."""
        config = self.ground.config
        counts = (*config.shapes_tried, 2 if config.deep_thin else 1)
        shares = [share / max(1, count) for share, count in zip(_SHARES, counts, strict=True)]
        to_come = [share for share, count in zip(shares, counts, strict=True) for _ in range(count)][len(self.trained) :]
        left = config.hours * 3600 * (1 - _LIVE_SHARE) - self.ground.decisions.seconds()
        return max(0.0, left) * shares[round_] / max(sum(to_come), shares[round_])

    def _flops_of_the_last(self) -> float:
        """What the last shape's training may take: of a small one that is more tokens. At least what the first probe's took."""
        first, searched = self.trained[0], 1 + _SEARCH * len(self.ground.config.rates)
        return max(self._flops_of_the_next(2) / searched, first.record.tokens * _flops(first.shape))

    @cached_property
    def _worth_learning(self) -> int:
        """Tokens of training on what was recorded that are worth as much as new ones."""
        rows, length = TraceReader(self.ground.train).rows(), self.ground.config.length
        return _EPOCHS * sum(min(len(row.prompt_ids) + row.num_output, length) for row in rows)


def cut_by(order: Sequence[int] | None, sizes: Mapping[str, int], source: Shape) -> tuple[PrunerChoice, ...]:
    """What the sizes need, and a head that knows of it: the draft begins to learn where it would have come to after long."""
    whole = sizes_of(source)
    smaller = {name: size for name, size in sizes.items() if size != whole[name]}
    return (*pruners_by(order, smaller), *([PrunerChoice(kind="refit")] if smaller and not source.tied else []))


def pruners_by(order: Sequence[int] | None, smaller: Mapping[str, int]) -> tuple[PrunerChoice, ...]:
    """Those that the sizes need, and of them `depth` goes by an order if one is known."""
    depth = PrunerChoice(kind="depth", settings={} if order is None else {"order": list(order)})
    return (*([depth] if "layers" in smaller else []), *([PrunerChoice(kind="width")] if {*smaller} - {"layers"} else []))


def sizes_of(shape: Shape) -> dict[str, int]:
    """What a shape is cut to, by name."""
    return {name: getattr(shape, name) for name in _SIZES}


def replayed(ground: Ground, model: Path) -> Path:
    """The scorecard of a draft on the probe split."""
    asked = EvaluateConfig(
        trace=str(ground.probe),
        draft=ModelDraft(path=str(model)),
        lookaheads=LOOKAHEADS,
        engine=ground.config.scoring,
        serve=ground.config.engine.kind,
    )
    return evaluate(asked, ground.store)


def _flops(shape: Shape) -> float:
    """Of training on one token."""
    return float(flops_per_token(shape_arrays([shape]), shape)[0])
