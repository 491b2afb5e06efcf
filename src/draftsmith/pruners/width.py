"""Pruner `width`: which heads, neurons and hidden dimensions to keep, without training, by how much they carry.

What a head or a neuron carries is the mean size of what it puts out times the size of the weights that read it; what a hidden
dimension carries is the mean size of what the norms put out there (Minitron, Muralidharan et al. 2024). It takes one pass over
recorded rows."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.keep_plans import KeepPlan, KeptLayer
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import Shape
from draftsmith.engines._scoring import batches_to_score, real_tokens, score_batch
from draftsmith.training.masks import most
from draftsmith.training.sources import Source, load_source, versions
from draftsmith.training.surgery import cut_source


class WidthSettings(StrictConfig):
    """There is nothing to set."""


class _Sizes:
    """Mean absolute value of everything that flows into some modules and out of others, dimension by dimension."""

    def __init__(self) -> None:
        self._sums: dict[Any, Tensor] = {}
        self._counts: dict[Any, int] = defaultdict(int)
        self._handles: list[Any] = []
        self.real = torch.empty(0)  # which positions of the coming pass hold a token

    def watch_input(self, key: Any, module: nn.Module) -> None:
        self._handles.append(module.register_forward_pre_hook(lambda _, inputs: self._add(key, inputs[0])))

    def watch_output(self, key: Any, module: nn.Module) -> None:
        self._handles.append(module.register_forward_hook(lambda _, __, output: self._add(key, output)))

    def mean(self, key: Any) -> Tensor:
        return self._sums[key] / self._counts[key]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _add(self, key: Any, values: Tensor) -> None:
        flat = values.detach().float().abs().flatten(0, -2)[self.real.flatten()]
        self._sums[key] = self._sums.get(key, torch.zeros_like(flat[0])) + flat.sum(0)
        self._counts[key] += len(flat)


def _carried(source: Source, job: PruneJob, layers: list[int]) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor]]:
    """What each hidden dimension carries, and in each layer each head and each neuron."""
    sizes, layout = _Sizes(), source.layout
    attention, mlp = source.modules(layout.attention_out), source.modules(layout.mlp_out)
    for index in layers:
        sizes.watch_input(("attention", index), attention[index])
        sizes.watch_input(("mlp", index), mlp[index])
    for name in layout.norms:
        for index in layers if "{layer}" in name else [0]:
            sizes.watch_output("hidden", source.model.get_submodule(name.format(layer=index)))
    source_layers = source.layers
    source.layers = nn.ModuleList(source_layers[index] for index in layers)
    for batch in batches_to_score(job.rows, job.engine.batch_size, source.shape.vocabulary):
        rows = [job.rows[i] for i in batch]
        sizes.real = real_tokens(rows).to(source.model.device)
        score_batch(source.model, rows, job.sampling)
    source.layers = source_layers
    sizes.close()
    heads, neurons = {}, {}
    for index in layers:
        carried = sizes.mean(("attention", index)) * _read_by(attention[index])
        heads[index] = carried.view(source.shape.heads, -1).sum(1)
        neurons[index] = sizes.mean(("mlp", index)) * _read_by(mlp[index])
    return sizes.mean("hidden"), heads, neurons


def _read_by(linear: nn.Module) -> Tensor:
    weight: Tensor = linear.weight
    return weight.detach().float().norm(dim=0)


def _kept_layer(index: int, heads: Tensor, neurons: Tensor, source: Shape, wanted: Shape) -> KeptLayer:
    """The kv heads whose query heads carry most, and of those query heads the best."""
    group = source.heads // source.kv_heads
    by_key = heads.view(source.kv_heads, group)
    per_key = wanted.heads // wanted.kv_heads
    keys = most(by_key.topk(per_key, dim=1).values.sum(1), wanted.kv_heads)
    queries = tuple(key * group + one for key in keys for one in most(by_key[key], per_key))
    return KeptLayer(index=index, heads=queries, kv_heads=keys, neurons=most(neurons, wanted.intermediate))


class _Width:
    cuts = ("heads", "kv_heads", "intermediate", "hidden")
    trains = False
    cut = staticmethod(cut_source)
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        return parse_config(WidthSettings, settings, "the settings of the pruner width").model_dump(mode="json")

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> None:
        """It does not train."""

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        source = load_source(job)
        layers = [layer.index for layer in so_far.layers]
        hidden, heads, neurons = _carried(source, job, layers)
        kept = (_kept_layer(index, heads[index], neurons[index], source.shape, job.wanted) for index in layers)
        return KeepPlan(hidden=most(hidden, job.wanted.hidden), layers=tuple(kept))


PLUGIN = _Width()
