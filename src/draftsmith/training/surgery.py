"""Surgery: a source and a keep-plan become a smaller checkpoint that transformers and vLLM load as they are.

Reads sharded safetensors one weight at a time and writes shards of its own, so that neither model is ever whole in memory."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftsmith.core.checkpoints import weight_files
from draftsmith.core.families import Axis, Layout, check_shape, cut_config, family_of, is_computed, split_name, trim_config
from draftsmith.core.keep_plans import KeepPlan, KeptLayer
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import Shape, shape_of
from draftsmith.core.store import read_json, write_json

_SHARD_BYTES = 2 << 30
HEAD = "lm_head.weight"
# What goes with the weights. Weights in other formats are of the source, and would be wrong beside a cut.
_COMPANIONS = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.tiktoken", "spiece.model",
    "generation_config.json", "*.jinja", "*.py", "LICENSE*", "NOTICE*", "USE_POLICY*",
)  # fmt: skip


def cut_source(job: PruneJob, plan: KeepPlan, folder: Path) -> None:
    """For pruners that leave the weights as they are."""
    cut(job.source, plan, folder)


def cut(
    source: Path,
    plan: KeepPlan,
    folder: Path,
    weights: Iterable[tuple[str, Tensor]] | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> Path:
    """Write what the plan keeps of `source` as a checkpoint of its own, tokenizer and all; `weights` in the place of the
    source's own, if given. A cut that was interrupted leaves no folder behind."""
    config = read_json(source / "config.json")
    family, shape = family_of(config, str(source)), shape_of(config, f"{source}/config.json")
    plan.check(shape)
    smaller = plan.shape(shape)
    check_shape(family, shape, smaller)
    new_config = cut_config(config, smaller, [layer.index for layer in plan.layers], family)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    given = saved_weights(source) if weights is None else weights
    kept = _cut_weights(given, plan, shape, family.layout(config))
    if plan.rows is not None:
        new_config = trim_config(new_config, len(plan.rows))
        (embeddings,) = (name for name in family.layout(config).weights if name.endswith("embed_tokens.weight"))
        kept = _trimmed(kept, plan.rows, embeddings)
    _write_weights(kept, partial, shard_bytes)
    for file in source.iterdir():
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _COMPANIONS):
            shutil.copyfile(file, partial / file.name)
    write_json(partial / "config.json", new_config)
    partial.rename(folder)
    return folder


def saved_weights(source: Path) -> Iterator[tuple[str, Tensor]]:
    """One at a time, from all files of a checkpoint."""
    for file in weight_files(source):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (not a mapping)
                yield name, weights.get_tensor(name)


def _cut_weights(
    weights: Iterable[tuple[str, Tensor]], plan: KeepPlan, shape: Shape, layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    """Every weight that stays, under its new name and cut to size."""
    kept = {layer.index: (new, layer) for new, layer in enumerate(plan.layers)}
    for name, tensor in weights:
        if is_computed(name):
            continue
        pattern, index = split_name(name, layout)
        if index is None:
            yield name, _cut_one(tensor, layout.weights[pattern], plan, plan.layers[0], shape)
        elif index in kept:
            new, layer = kept[index]
            yield pattern.format(layer=new), _cut_one(tensor, layout.weights[pattern], plan, layer, shape)


def _trimmed(weights: Iterator[tuple[str, Tensor]], rows: Sequence[int], embeddings: str) -> Iterator[tuple[str, Tensor]]:
    """With some rows of the head in the place of the head; where it is tied, some of the embeddings."""
    tied = head = None
    for name, tensor in weights:
        if name == HEAD:
            head = tensor
            continue
        tied = tensor if name == embeddings else tied
        yield name, tensor
    whole = tied if head is None else head
    assert whole is not None, "a checkpoint has embeddings"
    ids = torch.tensor(rows)
    yield "lm_head.rows.weight", whole.index_select(0, ids).contiguous()
    yield "lm_head.kept_ids", ids


def _cut_one(tensor: Tensor, axes: tuple[Axis, ...], plan: KeepPlan, layer: KeptLayer, shape: Shape) -> Tensor:
    for dimension, axis in enumerate(axes):
        wanted = positions(axis, plan, layer, shape.head_size)
        if wanted is not None and len(wanted) != tensor.shape[dimension]:
            tensor = tensor.index_select(dimension, wanted)
    return tensor.contiguous()


def positions(axis: Axis, plan: KeepPlan, layer: KeptLayer, head_size: int) -> Tensor | None:
    """Which positions of a dimension stay; None: all of them."""
    if axis == "fixed":
        return None
    kept = torch.tensor(plan.hidden if axis == "hidden" else getattr(layer, axis))
    if axis in ("heads", "kv_heads"):
        return (kept[:, None] * head_size + torch.arange(head_size)).flatten()
    return kept


def _write_weights(weights: Iterator[tuple[str, Tensor]], folder: Path, shard_bytes: int) -> None:
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        save_file(held, folder / f"shard-{len(shards):05d}", metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in weights:
        if held and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        held[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    if len(shards) == 1:
        (folder / "shard-00000").rename(folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{number:05d}").rename(folder / file)
        index |= dict.fromkeys(names, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
