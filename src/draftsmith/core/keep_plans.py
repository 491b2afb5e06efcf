"""A keep-plan: which layers, heads, neurons, hidden dimensions and output rows of a source stay. Pruners write it, surgery
carries it out.

Checkpoints have one shape for all layers, so every layer that stays keeps the same number of heads, kv heads and neurons,
though not the same ones; and query heads stay in equal numbers for each kv head, by which engines tell whose they are."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import PlanError
from draftsmith.core.shapes import Shape

Indexes = tuple[int, ...]


class KeptLayer(StrictConfig):
    """What stays of one layer of the source. Indexes are the source's, in rising order."""

    index: int = Field(ge=0)
    heads: Indexes
    kv_heads: Indexes
    neurons: Indexes


class KeepPlan(StrictConfig):
    """What stays of a source: its layers in rising order, the hidden dimensions, which all layers share, and the tokens whose
    rows the output head keeps (None: all)."""

    hidden: Indexes
    layers: tuple[KeptLayer, ...] = Field(min_length=1)
    rows: Indexes | None = None

    @classmethod
    def everything(cls, shape: Shape) -> Self:
        """Nothing is cut."""
        whole = {
            "heads": tuple(range(shape.heads)),
            "kv_heads": tuple(range(shape.kv_heads)),
            "neurons": tuple(range(shape.intermediate)),
        }
        return cls(hidden=tuple(range(shape.hidden)), layers=tuple(KeptLayer(index=i, **whole) for i in range(shape.layers)))

    def shape(self, source: Shape) -> Shape:
        """The shape of what stays."""
        first = self.layers[0]
        cut = source.model_copy(
            update={
                "layers": len(self.layers),
                "heads": len(first.heads),
                "kv_heads": len(first.kv_heads),
                "intermediate": len(first.neurons),
                "hidden": len(self.hidden),
            }
        )
        return cut if self.rows is None else cut.with_rows(len(self.rows))

    def check(self, source: Shape) -> None:
        """Refuse a plan that this source, or any checkpoint, cannot have."""
        _check_indexes("hidden dimensions", self.hidden, source.hidden)
        if self.rows is not None:
            _check_indexes("output rows", self.rows, source.vocabulary)
        _check_indexes("layers", [layer.index for layer in self.layers], source.layers)
        group = source.heads // source.kv_heads
        first = self.layers[0]
        for layer in self.layers:
            where = f" of layer {layer.index}"
            _check_indexes("heads" + where, layer.heads, source.heads)
            _check_indexes("kv heads" + where, layer.kv_heads, source.kv_heads)
            _check_indexes("neurons" + where, layer.neurons, source.intermediate)
            for name in ("heads", "kv_heads", "neurons"):
                if len(getattr(layer, name)) != len(getattr(first, name)):
                    raise PlanError(
                        f"layer {layer.index} keeps {len(getattr(layer, name))} {name.replace('_', ' ')}, layer {first.index} "
                        f"{len(getattr(first, name))}, and a checkpoint has one number for all layers",
                        "keep the same number in every layer",
                    )
            per_key = {key: sum(1 for head in layer.heads if head // group == key) for key in layer.kv_heads}
            if len(set(per_key.values())) != 1 or sum(per_key.values()) != len(layer.heads):
                raise PlanError(
                    f"layer {layer.index} keeps the heads {list(layer.heads)} with the kv heads {list(layer.kv_heads)}, "
                    f"and each kv head of this source serves {group} heads in a row",
                    "keep the same number of heads for every kv head that stays, and none of the others",
                )


def _check_indexes(what: str, kept: Sequence[int], most: int) -> None:
    if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= most:
        raise PlanError(
            f"the {what} to keep are not some of 0 to {most - 1}, each once and in rising order",
            "name at least one, and none twice",
        )
