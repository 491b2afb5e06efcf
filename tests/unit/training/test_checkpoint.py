"""Checkpoints that cannot be written say what to do. What they are for is tested with the loop."""

from concurrent.futures import Future
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.api import CheckpointException

from draftsmith.core.errors import RecordError
from draftsmith.training import checkpoint
from draftsmith.training.mesh import world


def test_a_full_disk_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing: Future[Any] = Future()
    writing.set_exception(CheckpointException("", {0: (OSError("no space left"), StackSummary())}))
    monkeypatch.setattr(checkpoint.dcp, "async_save", lambda *_, **__: writing)
    with world():
        checkpoints = checkpoint.Checkpoints(tmp_path)
        with pytest.raises(RecordError, match=f"could not be written into {tmp_path}.*no space left") as caught:
            checkpoints.save({}, 1, wait=True)
    assert "room for three of them" in caught.value.way_out
