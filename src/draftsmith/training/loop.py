"""The training loop: one for pruning and for distillation, on one rank or on hundreds.

A step is `batch` sequences whatever the number of ranks: each takes its share, in passes of `micro_batch`. The loss is a mean
over all tokens of the step, so that one rank and many compute the same up to rounding. What the loop does not know, a `Task`
does: which weights there are besides the model's, and what the loss of a batch is."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn

from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError, TrainingError
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.training.checkpoint import Checkpoints, optimizer_state
from draftsmith.training.lessons import Lesson
from draftsmith.training.mesh import Precision, World
from draftsmith.training.sources import Source

STOPPED = 143  # exit code of a run that a SIGTERM ended; launchers know it


class TrainSettings(StrictConfig):
    """How long and how fast to train. Sizes are of a whole step, over all ranks; a rank passes `micro_batch` at most at a
    time."""

    steps: int = Field(1000, ge=1)
    batch: int = Field(16, ge=1)
    micro_batch: int = Field(4, ge=1)
    length: int = Field(512, ge=8)
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: int = Field(20, ge=0)
    last_rate: float = Field(0.1, ge=0, le=1)  # of the learning rate, where the cosine ends
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(1.0, gt=0)
    precision: Precision = "auto"
    save_activations: bool = True
    compile: bool = False
    save_every: int = Field(200, ge=1)
    seed: int = Field(0, ge=0)

    def identity(self) -> dict[str, Any]:
        """What the outcome depends on; the rest says how fast it comes."""
        return self.model_dump(mode="json", exclude={"micro_batch", "save_activations", "compile", "save_every"})


class Task(Protocol):
    """What is trained, beyond the weights of the model."""

    parameters: dict[str, nn.Parameter]  # its own, the same on every rank
    optimizer: torch.optim.Optimizer | None

    def begin(self, step: int) -> None:
        """A step begins: its number is all that it may depend on."""
        ...

    def prepare(self) -> None:
        """A pass begins. What gradients are to reach must be computed anew."""
        ...

    def loss(self, taught: Tensor) -> Tensor:
        """The loss of a pass, given that of the lesson; added up over a step it must have the weight of one."""
        ...

    def after(self, step: int) -> dict[str, float]:
        """The model's optimiser has stepped; the task's may. What to write into the log."""
        ...


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Linear warm-up, then half a cosine down to `last_rate` of the highest."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.learning_rate * (settings.last_rate + (1 - settings.last_rate) * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    source: Source,
    lesson: Lesson,
    settings: TrainSettings,
    world: World,
    folder: Path,
    task: Task | None = None,
    note: Callable[[int, dict[str, float]], None] = lambda _step, _values: None,
    check: Callable[[int], dict[str, float]] = lambda _step: {},
) -> bool:
    """Train until the last step, from the newest checkpoint in `folder` if there is one. False if a signal ended it before.
    After a step `check` may measure something, on all ranks; `note` hears of every step."""
    share, size = shares(settings, world.size)
    passes = share // size
    named = dict(source.model.named_parameters())
    optimizer = torch.optim.AdamW(
        named.values(),
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=settings.weight_decay,
        fused=True,  # torch's own choice goes through every weight a dozen times on a CPU, and holds more on a GPU
    )
    checkpoints = Checkpoints(folder)

    def state(step: int) -> dict[str, Any]:
        found: dict[str, Any] = {"model": dict(named), "optimizer": optimizer_state(named, optimizer), "step": step}
        if task is not None and task.optimizer is not None:
            found |= {"task": dict(task.parameters), "task_optimizer": optimizer_state(task.parameters, task.optimizer)}
        return found

    loaded = state(0)
    first = 0
    if checkpoints.load(loaded):
        first = int(loaded["step"])
        log.info("going on from step %d of %d", first, settings.steps)
    tokens_of_step = settings.batch * settings.length
    said: dict[str, float] = {}
    with progress("training", settings.steps, already=first) as bar, _told_to_stop(world) as stopped:
        for step in range(first, settings.steps):
            began = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, step)
            if task is not None:
                task.begin(step)
            total, asked = torch.zeros((), device=world.device), lesson.num_asked(step, step * settings.batch, settings.batch)
            for index in range(passes):
                # Gradients are spread over the ranks after every pass: to keep them whole until the last would cost each rank
                # as much memory as the whole model.
                first_of_pass = step * settings.batch + world.rank * share + index * size
                batch = lesson.batch(source.model, step, first_of_pass, size)
                if task is not None:
                    task.prepare()
                # FSDP takes the mean over ranks: together the ranks' losses are the mean over the tokens of the step.
                taught = lesson.loss(source.model, batch) * world.size / asked
                (taught if task is None else task.loss(taught)).backward()
                total += taught.detach()
            norm = nn.utils.clip_grad_norm_(named.values(), settings.clip)
            dist.all_reduce(total)
            loss, gradient = float(total) / world.size, float(getattr(norm, "full_tensor", lambda n=norm: n)())
            if not math.isfinite(loss + gradient):  # before weights that are no numbers either are saved
                what = "gradient" if math.isfinite(loss) else "loss"
                raise TrainingError(
                    f"the {what} is no number any more in step {step + 1}", "lower the learning rate, or look at the text"
                )
            optimizer.step()
            optimizer.zero_grad()
            values = task.after(step) if task is not None else {}
            values |= {"loss": loss, "gradient": gradient}
            values |= {"tokens_per_second": tokens_of_step / (time.monotonic() - began), "rate": learning_rate(settings, step)}
            values |= {"tokens": (step + 1) * tokens_of_step}
            values |= check(step)
            note(step, values)
            said |= {name: values[name] for name in ("loss", "tokens_per_step") if name in values}
            line = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in said.items())
            bar.advance(note=f"{line}, {values['tokens_per_second']:,.0f} tokens/s")
            ended = stopped()
            if ended or (step + 1) % settings.save_every == 0 or step + 1 == settings.steps:
                checkpoints.save(state(step + 1), step + 1, wait=ended)
            if ended:
                log.warning("stopped by a signal after step %d; the same command goes on from there", step + 1)
                return False
    checkpoints.finish()
    return True


def shares(settings: TrainSettings, ranks: int) -> tuple[int, int]:
    """Sequences of one rank in a step, and in each of its passes."""
    share, rest = divmod(settings.batch, ranks)
    if rest or not share:
        raise ConfigError(
            f"a batch of {settings.batch} cannot be split over {ranks} ranks", "make it a multiple of the number of ranks"
        )
    return share, max(size for size in range(1, min(share, settings.micro_batch) + 1) if share % size == 0)


@contextmanager
def _told_to_stop(world: World) -> Iterator[Callable[[], bool]]:
    """Whether any rank was told to end (SIGTERM). All of them learn of it at the same step."""
    told = threading.Event()

    def stopped() -> bool:
        heard = torch.tensor(float(told.is_set()), device=world.device)
        dist.all_reduce(heard, op=dist.ReduceOp.MAX)
        return bool(heard)

    if threading.current_thread() is not threading.main_thread():  # only the main thread hears signals
        yield stopped
        return
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)
