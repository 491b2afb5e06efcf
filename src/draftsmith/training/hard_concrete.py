"""Masks that can be learned: hard-concrete gates (Louizos et al. 2018), and the price that leads them to a shape.

A gate is 0 or 1 with some chance and in between otherwise; `log_alpha` moves the chances. How many gates are open is then known
in expectation, and Lagrange multipliers charge the model for every one too many, axis by axis, layer by layer, after
Sheared-LLaMA (Xia et al. 2024). There they pay for one too few as well. Nothing else moves the gate of a neuron that does
nothing, and Adam moves it as far for a small pay as for a large one: it opens before those that are needed. Here the loss alone
opens gates. L layers, G kv heads, H heads, N neurons, D hidden dimensions."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from draftsmith.core.errors import PlanError
from draftsmith.core.keep_plans import KeepPlan, KeptLayer
from draftsmith.core.shapes import Shape
from draftsmith.training.masks import Masks, most

_LOW, _HIGH, _TEMPERATURE = -0.1, 1.1, 2.0 / 3.0
_OPEN = 3.0  # where log_alpha begins: a gate is open with a chance of 0.99
_FARTHEST = math.log(100.0)  # beyond, a gate hardly feels anything any more; Sheared-LLaMA's bound
_EDGE = 1e-6


def gate(log_alpha: Tensor, noise: Tensor) -> Tensor:
    """One draw of each gate, from noise between 0 and 1; gradients reach `log_alpha`."""
    noise = noise.clamp(_EDGE, 1 - _EDGE)
    soft = torch.sigmoid((noise.log() - (1 - noise).log() + log_alpha) / _TEMPERATURE)
    return (soft * (_HIGH - _LOW) + _LOW).clamp(0.0, 1.0)


def chance_open(log_alpha: Tensor) -> Tensor:
    """That a gate is not 0."""
    return torch.sigmoid(log_alpha - _TEMPERATURE * math.log(-_LOW / _HIGH))


class Gates:
    """The gates of a source on its way to a shape. Only axes that become smaller have any."""

    def __init__(self, source: Shape, wanted: Shape, seed: int) -> None:
        self.source, self.wanted = source, wanted
        group, wanted_group = source.heads // source.kv_heads, wanted.heads // wanted.kv_heads
        # name: (gates, how many may stay open along the last dimension)
        axes = {
            "layers": ((source.layers,), wanted.layers),
            "hidden": ((source.hidden,), wanted.hidden),
            "kv_heads": ((source.layers, source.kv_heads), wanted.kv_heads),
            "heads": ((source.layers, source.kv_heads, group), wanted_group),
            "neurons": ((source.layers, source.intermediate), wanted.intermediate),
        }
        self._sizes = {name: size for name, (size, _) in axes.items()}
        self._targets = {name: count for name, (size, count) in axes.items() if count < size[-1]}
        if not self._targets:
            raise PlanError("the shape asked for is the source's own: there is nothing to mask", "ask for a smaller one")
        generator = torch.Generator().manual_seed(seed)
        self.log_alphas = {
            name: nn.Parameter(_OPEN + 0.01 * torch.randn(self._sizes[name], generator=generator)) for name in self._targets
        }
        self.prices = {
            f"{name} {kind}": nn.Parameter(torch.zeros(self._sizes[name][:-1]))
            for name in self._targets
            for kind in ("linear", "square")
        }

    def masks(self, noise: Mapping[str, Tensor]) -> Masks:
        """One draw of all gates."""
        return self._masks({name: gate(alpha, noise[name]) for name, alpha in self.log_alphas.items()})

    def noise(self, seed: int, step: int) -> dict[str, Tensor]:
        """The same on every rank, and another for every seed and step."""
        mixed = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])  # torch would drop the upper half of a number
        generator = torch.Generator().manual_seed(mixed)
        return {name: torch.rand(alpha.shape, generator=generator) for name, alpha in self.log_alphas.items()}

    def price(self, progress: float) -> Tensor:
        """What the multipliers charge for being above the way from the source (progress 0) to the shape (1)."""
        total = torch.zeros(())
        for name, off in self._off(progress).items():
            linear, square = self.prices[f"{name} linear"], self.prices[f"{name} square"]
            felt = torch.where(off > 0, off, off.detach())  # below the aim only the price moves: it falls
            total = total + (linear * felt + square * off.clamp(min=0.0) ** 2).sum()
        return total

    def stay_within(self) -> None:
        """Prices that a step has taken below 0 are 0; and gates stay where a price can still move them."""
        with torch.no_grad():
            for price in self.prices.values():
                price.clamp_(min=0.0)
            for alpha in self.log_alphas.values():
                alpha.clamp_(-_FARTHEST, _FARTHEST)

    def worst(self) -> float:
        """How far the expected shape is from the one wanted, as a share of the source, on the axis where it is worst."""
        with torch.no_grad():
            return max(float(off.abs().max()) for off in self._off_where_it_counts())

    def too_many(self) -> float:
        """How many more gates are open in expectation than wanted, as a share of the source; at most 0 if there are none."""
        with torch.no_grad():
            return max(float(off.max()) for off in self._off_where_it_counts())

    def plan(self) -> KeepPlan:
        """Exactly the shape wanted: of every axis the gates that are most open."""
        source, wanted = self.source, self.wanted
        open_ = {name: torch.zeros(size) for name, size in self._sizes.items()}
        open_ |= {name: alpha.detach() for name, alpha in self.log_alphas.items()}
        layers = []
        for index in most(open_["layers"], wanted.layers):
            keys = most(open_["kv_heads"][index], wanted.kv_heads)
            group = source.heads // source.kv_heads
            heads = tuple(
                key * group + one for key in keys for one in most(open_["heads"][index, key], wanted.heads // wanted.kv_heads)
            )
            neurons = most(open_["neurons"][index], wanted.intermediate)
            layers.append(KeptLayer(index=index, heads=heads, kv_heads=keys, neurons=neurons))
        return KeepPlan(hidden=most(open_["hidden"], wanted.hidden), layers=tuple(layers))

    def _off_where_it_counts(self) -> list[Tensor]:
        """From the shape wanted, without the layers that would go: nothing but prices moves the gates within those."""
        layers = self.log_alphas.get("layers")
        stay = slice(None) if layers is None else list(most(layers, self.wanted.layers))
        return [off[stay] if off.dim() else off for off in self._off(1.0).values()]

    def _off(self, progress: float) -> dict[str, Tensor]:
        closed, opened = (chance_open(torch.tensor(bound)) for bound in (-_FARTHEST, _FARTHEST))
        found = {}
        for name, alpha in self.log_alphas.items():
            size = alpha.shape[-1]
            aim = size + progress * (self._targets[name] - size)
            # Gates at a bound count as closed or open: else many closed ones would together count as one that is not.
            counted = (chance_open(alpha) - closed) / (opened - closed)
            found[name] = (counted.sum(-1) - aim) / size
        return found

    def _masks(self, values: Mapping[str, Tensor]) -> Masks:
        whole = {name: torch.ones(size) for name, size in self._sizes.items()} | dict(values)
        return Masks(
            hidden_D=whole["hidden"],
            layers_L=whole["layers"],
            heads_LH=(whole["heads"] * whole["kv_heads"][..., None]).flatten(1),
            neurons_LN=whole["neurons"],
        )
