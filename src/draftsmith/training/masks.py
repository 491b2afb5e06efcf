"""Masks on a model as transformers wrote it: what a mask drops behaves as if surgery had cut it, without touching the weights.

Hooks multiply what flows between modules, so the model's code stays its own. Masks may lie between 0 and 1 while they are
learned; at 0 and 1 the masked model computes what the cut one would. L layers, H heads, N neurons, D hidden dimensions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from draftsmith.core.families import Layout
from draftsmith.core.keep_plans import Indexes, KeepPlan
from draftsmith.core.shapes import Shape


@dataclass
class Masks:
    """One number for each thing that can go. A kv head goes with the last of its query heads."""

    hidden_D: Tensor
    layers_L: Tensor
    heads_LH: Tensor
    neurons_LN: Tensor

    @classmethod
    def of(cls, plan: KeepPlan, source: Shape) -> "Masks":
        """1 for what stays, 0 for what goes."""
        masks = cls(
            torch.zeros(source.hidden),
            torch.zeros(source.layers),
            torch.zeros(source.layers, source.heads),
            torch.zeros(source.layers, source.intermediate),
        )
        masks.hidden_D[list(plan.hidden)] = 1.0
        for layer in plan.layers:
            masks.layers_L[layer.index] = 1.0
            masks.heads_LH[layer.index, list(layer.heads)] = 1.0
            masks.neurons_LN[layer.index, list(layer.neurons)] = 1.0
        return masks

    def to(self, device: torch.device) -> "Masks":
        return Masks(*(one.to(device) for one in (self.hidden_D, self.layers_L, self.heads_LH, self.neurons_LN)))


def most(values: Tensor, count: int) -> Indexes:
    """The places of the largest, in rising order; the earlier of equals."""
    return tuple(sorted(torch.argsort(values, descending=True, stable=True)[:count].tolist()))


class MaskHooks:
    """Masks attached to a model. Whatever stands in `masks` when the model runs is what counts."""

    def __init__(self, model: nn.Module, layout: Layout, shape: Shape, masks: Masks) -> None:
        self.masks = masks
        self._head_size = shape.head_size
        self._handles: list[Any] = []
        for name in layout.embeddings:
            self._after(model.get_submodule(name), lambda _, output: self._keep_hidden(output))
        for name in layout.norms:
            for one in _each_layer(name, shape.layers):
                self._attach_norm(model.get_submodule(one))
        for index in range(shape.layers):
            self._attach_layer(model, layout, index)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _attach_layer(self, model: nn.Module, layout: Layout, index: int) -> None:
        attention_out, mlp_out, layer = (
            model.get_submodule(name.format(layer=index)) for name in (layout.attention_out, layout.mlp_out, layout.layer)
        )
        self._before(attention_out, lambda x: x * self.masks.heads_LH[index].repeat_interleave(self._head_size).to(x.dtype))
        self._before(mlp_out, lambda x: x * self.masks.neurons_LN[index].to(x.dtype))
        for module in (attention_out, mlp_out):
            self._after(module, lambda _, output: self._keep_hidden(output))
        # Between skipping a layer (0) and running it (1); exact at both ends.
        self._after(layer, lambda x, output: torch.lerp(x, output, self.masks.layers_L[index].to(x.dtype)))

    def _attach_norm(self, norm: nn.Module) -> None:
        """A norm must take the mean over the dimensions that stay, as it will once the others are cut."""
        if isinstance(norm, nn.LayerNorm):
            self._after(norm, lambda x, _: self._layer_norm(norm, x))
            return
        # RMS: scaling by a before and by 1/a behind changes the number that the sum of squares is divided by, and nothing else.
        self._before(norm, lambda x: x * self._stretch().to(x.dtype))
        self._after(norm, lambda _, output: output / self._stretch().to(output.dtype))

    def _stretch(self) -> Tensor:
        return (len(self.masks.hidden_D) / self.masks.hidden_D.sum()).sqrt()

    def _layer_norm(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        mask = self.masks.hidden_D.float()
        count, wide = mask.sum(), x.float()
        centred = (wide - (wide * mask).sum(-1, keepdim=True) / count) * mask
        scaled = centred * torch.rsqrt((centred**2).sum(-1, keepdim=True) / count + norm.eps)
        if norm.weight is not None:
            scaled = scaled * norm.weight.float()
        if norm.bias is not None:
            scaled = scaled + norm.bias.float() * mask
        return scaled.to(x.dtype)

    def _keep_hidden(self, output: Tensor) -> Tensor:
        return output * self.masks.hidden_D.to(output.dtype)

    def _before(self, module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        self._handles.append(module.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:])))

    def _after(self, module: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._handles.append(module.register_forward_hook(lambda _, inputs, output: change(inputs[0], output)))


def _each_layer(name: str, layers: int) -> Sequence[str]:
    return [name.format(layer=index) for index in range(layers)] if "{layer}" in name else [name]
