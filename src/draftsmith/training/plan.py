"""What a run would take, without running it: one step with tensors that have no content, over ranks that do not exist.

The sharding, the masks, the loss and the optimiser are those of the run itself; torch's tracker sees every tensor that a rank
would hold. So nothing of the source is read but its config, and no device need be there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from draftsmith.core.pruning import TrainingCost
from draftsmith.core.shapes import Shape
from draftsmith.training.batch import text_batch
from draftsmith.training.hard_concrete import Gates
from draftsmith.training.lessons import summed_loss
from draftsmith.training.loop import TrainSettings, shares
from draftsmith.training.masks import MaskHooks
from draftsmith.training.mesh import empty_source, spread
from draftsmith.training.sources import Source

_KINDS = {
    "SHARDED_PARAM": "weights",
    "UNSHARDED_PARAM": "gathered weights",
    "BUFFER": "buffers",
    "SHARDED_GRAD": "gradients",
    "UNSHARDED_GRAD": "gathered gradients",
    "ACT": "activations",
    "TEMP": "temporary",
    "ALL_GATHER": "communication",
    "REDUCE_SCATTER": "communication",
    "OPT": "optimiser",
    "INP": "input",
}


def training_cost(
    source: Path, settings: TrainSettings, ranks: int, masked_to: Shape | None = None, cut_to: Shape | None = None
) -> TrainingCost:
    """Of training the source with masks on the way to a shape, or of what is left of it once it is cut to one."""
    with _fake_ranks(ranks) as mesh, FakeTensorMode():
        empty = empty_source(source, torch.device("cpu"), cut_to)
        memory = _peak(empty, mesh, settings, ranks, masked_to)
    shape = empty.shape
    return TrainingCost(
        memory_bytes=memory,
        checkpoint_bytes=3 * 4 * sum(weight.numel() for weight in empty.model.parameters()),  # weights, two moments, float32
        tokens=settings.steps * settings.batch * settings.length,
        flops_per_token=flops_per_token(shape, settings.length, settings.save_activations),
    )


def _peak(source: Source, mesh: DeviceMesh, settings: TrainSettings, ranks: int, masked_to: Shape | None) -> dict[str, int]:
    """Bytes that one rank holds at the peak of a step, by kind."""
    share, size = shares(settings, ranks)
    dtype = torch.float32 if settings.precision == "float32" else torch.bfloat16  # plans are for devices that have units for it
    spread(source, mesh, dtype, settings.save_activations)
    draw = _attach_masks(source, masked_to)
    optimizer = torch.optim.AdamW(source.model.parameters(), lr=1e-4)  # fused, fake tensors would count it twice
    batch = text_batch(torch.zeros(size, settings.length, dtype=torch.long))
    tracker = FSDPMemTracker(source.model, optimizer)
    with tracker:
        for _ in range(2):  # the first has no optimiser state yet
            for _ in range(min(2, share // size)):  # the second pass of a step has gradients to add to
                tracker.reset_mod_stats()
                draw()
                summed_loss(source.model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    found: dict[str, int] = {}
    for kind, count in tracker.get_tracker_snapshot("peak")[torch.device("cpu")].items():
        name = str(kind).rpartition(".")[2]
        if name != "Total" and count:
            found[_KINDS[name]] = found.get(_KINDS[name], 0) + int(count)
    return found


def _attach_masks(source: Source, wanted: Shape | None) -> Callable[[], None]:
    """What draws the masks of a pass; without a shape to go to, nothing."""
    if wanted is None:
        return lambda: None
    gates = Gates(source.shape, wanted, 0)
    hooks = MaskHooks(source.model, source.layout, source.shape, gates.masks(gates.noise(0, 0)))

    def draw() -> None:
        hooks.masks = gates.masks(gates.noise(0, 0))

    return draw


def flops_per_token(shape: Shape, length: int, save_activations: bool) -> float:
    """Forward and backward: 6 for every weight in a matrix product, 12 for every layer and dimension of attention over the
    mean context; a third more if activations are computed again."""
    weights = shape.decoder_weights + shape.head_weights
    attention = 12.0 * shape.layers * shape.heads * shape.head_size * length / 2
    return (6.0 * weights + attention) * (1.0 if save_activations else 4.0 / 3.0)


@contextmanager
def _fake_ranks(count: int) -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()
