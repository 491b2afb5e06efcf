"""What a run says of itself: a line of JSON a step, and TensorBoard if it is installed."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from draftsmith.core.log import log
from draftsmith.core.store import write_atomic
from draftsmith.training.mesh import World


class TrainingNotes:
    """Written by the first rank, into `training.jsonl` and `tensorboard` of a folder."""

    def __init__(self, folder: Path, world: World) -> None:
        self._folder, self._writes = folder, world.rank == 0
        self._board: Any = None
        self._last: int | None = None

    def __enter__(self) -> Self:
        if self._writes:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(self._folder / "tensorboard"))
            except ModuleNotFoundError:
                log.info("no TensorBoard files: pip install tensorboard")
        return self

    def add(self, step: int, values: dict[str, float]) -> None:
        if not self._writes:
            return
        if self._last is None:
            self._forget_from(step)
        self._last = step
        with (self._folder / "training.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def _forget_from(self, step: int) -> None:
        """A run that goes on from a checkpoint does some steps again: what was said of them before does not count."""
        path = self._folder / "training.jsonl"
        if path.exists():
            # A kill may have left half a line at the end; its step is done again.
            whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            before = [line for line in whole if json.loads(line)["step"] < step]
            write_atomic(path, lambda partial: partial.write_text("".join(before)))

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._board is not None:
            self._board.close()
