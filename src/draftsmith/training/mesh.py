"""Ranks, and a source spread over them. How many there are, and on what, says the launcher: `torchrun` sets the environment,
and without it there is one rank."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

from draftsmith.core.errors import ModelError
from draftsmith.core.families import cut_config, family_of
from draftsmith.core.provenance import has_bf16_units
from draftsmith.core.shapes import Shape, shape_of
from draftsmith.core.store import read_json
from draftsmith.training.sources import Source

Precision = Literal["auto", "float32", "bfloat16"]
_PATIENCE = timedelta(hours=6)  # while the first rank tokenises or writes, the others wait
_joined = count()
# Hidden states come out of a sharded model as views, and nothing here changes an output in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


@dataclass(frozen=True)
class World:
    """The ranks of a run, seen from one of them."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh

    def wait(self) -> None:
        """For all others."""
        dist.barrier()


@contextmanager
def world(threads: int | None = None) -> Iterator[World]:
    """Join the ranks that the launcher started. Checkpoints are written beside the training, over gloo."""
    if threads:
        torch.set_num_threads(threads)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and accelerator.type == "mps":  # FSDP2 needs streams, which it has not
        accelerator = None
    device = (
        torch.device("cpu") if accelerator is None else torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", 0)))
    )
    if accelerator is not None:
        torch.accelerator.set_device_index(device.index)
    backend = "gloo" if accelerator is None else f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    store, rank, size = dist.HashStore(), 0, 1
    if "RANK" in os.environ:
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"draftsmith-{next(_joined)}", store)  # ranks may join again, and must not meet old keys
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device, init_device_mesh(device.type, (dist.get_world_size(),)))
    finally:
        dist.destroy_process_group()


def load_sharded(
    path: Path, world: World, precision: Precision, save_activations: bool = True, compile_layers: bool = False
) -> Source:
    """A source in float32, each rank holding its part and reading no more than that from disk. Arithmetic is in `precision`;
    without saved activations, those of a layer are computed again when they are needed."""
    source = empty_source(path, torch.device("meta"))
    spread(source, world.mesh, arithmetic(precision, world.device), save_activations, compile_layers)
    source.model.to_empty(device=world.device)
    _load_weights(source.model, path)
    _load_buffers(source.model, path, world.device)
    return source


def arithmetic(precision: Precision, device: torch.device) -> torch.dtype:
    """The same on every rank. `auto` is bfloat16, but float32 on processors of which one has no units for it: there bfloat16
    takes twice the time."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    fits = torch.tensor(device.type != "cpu" or has_bf16_units() is not False, dtype=torch.int)
    dist.all_reduce(fits, dist.ReduceOp.MIN)
    return torch.bfloat16 if fits else torch.float32


def spread(source: Source, mesh: DeviceMesh, dtype: torch.dtype, save_activations: bool, compile_layers: bool = False) -> None:
    """Shard every layer, and the rest, over the ranks."""
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    if not save_activations:
        source.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in source.layers:
        if compile_layers:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(source.model, mesh=mesh, mp_policy=policy)


def empty_source(path: Path, device: torch.device, cut_to: Shape | None = None) -> Source:
    """A source from its config alone, or what is left of it at a smaller shape: without weights, or with weights that nobody
    has set."""
    config = read_json(path / "config.json")
    family = family_of(config, str(path))
    if cut_to is not None:
        config = cut_config(config, cut_to, range(cut_to.layers), family)
    with device:
        model = AutoModelForCausalLM.from_config(_still(AutoConfig.for_model(**config)), dtype=torch.float32)
    return Source(model.train(), family.layout(config), shape_of(config, f"{path}/config.json"))


def _still(config: Any) -> Any:
    """Without dropout: what is trained is to be repeatable, and so little text is seen so few times."""
    for name in ("dropout", "attention_dropout", "activation_dropout", "layerdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    config.use_cache = False
    return config


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        dcp.load(dict(model.named_parameters()), storage_reader=HuggingFaceStorageReader(str(path)))
    except CheckpointException as error:
        raise ModelError(f"the weights of {path} cannot be loaded: {error}", "check that all of them are there") from None


def _load_buffers(model: nn.Module, path: Path, device: torch.device) -> None:
    """What is computed and not saved, such as the frequencies of rotary positions: from the smallest model of the kind."""
    config = AutoConfig.from_pretrained(path)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 8, None
    small = dict(AutoModelForCausalLM.from_config(config).named_buffers())
    for name, buffer in model.named_buffers():
        buffer.copy_(small[name].to(device))
