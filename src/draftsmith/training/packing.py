"""Recorded rows, packed into sequences of one length: files of numbers that are read in any order afterwards.

A row that is longer than a sequence loses the beginning of its prompt; an output that does not fit loses its end."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from draftsmith.core.trace import TraceRow

_OPEN = 64  # sequences that wait for more rows
_FILES = ("tokens", "rows", "counts", "asked", "log_p", "top_ids", "top_log_p")


class _Sequence:
    """One that is being filled."""

    def __init__(self) -> None:
        self.rows: list[tuple[TraceRow, int, int]] = []  # with how much of prompt and output
        self.size = 0

    def add(self, row: TraceRow, prompt: int, output: int) -> None:
        self.rows.append((row, prompt, output))
        self.size += prompt + output


def pack_rows(rows: Iterable[TraceRow], length: int, kept: int, folder: Path) -> None:
    """Fill sequences, each row into the fullest that has room; when too many wait, the fullest is written."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting: list[_Sequence] = []
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in _FILES}
        for row in rows:
            output = min(row.num_output, length - 1)
            if output < 1:
                continue
            prompt = min(len(row.prompt_ids), length - output)
            fitting = [one for one in waiting if one.size + prompt + output <= length]
            if not fitting:
                if len(waiting) == _OPEN:
                    fullest = max(waiting, key=lambda one: one.size)
                    waiting.remove(fullest)
                    _write(fullest, length, kept, files)
                waiting.append(_Sequence())
                fitting = waiting[-1:]
            max(fitting, key=lambda one: one.size).add(row, prompt, output)
        for one in waiting:
            _write(one, length, kept, files)
    (folder / "kept").write_text(str(kept))


def _write(sequence: _Sequence, length: int, kept: int, files: Mapping[str, IO[bytes]]) -> None:
    """Room that is left is filled with tokens that are rows of their own, seen by nobody."""
    tokens, rows = np.zeros(length, np.uint32), np.arange(length, dtype=np.uint32) + len(sequence.rows)
    begin, count = 0, 0
    for number, (row, prompt, output) in enumerate(sequence.rows):
        end, left_out = begin + prompt + output, len(row.prompt_ids) - prompt
        tokens[begin:end] = np.concatenate([row.prompt_ids[left_out:], row.output_ids[:output]])
        rows[begin:end] = number
        files["asked"].write(np.arange(begin + prompt - 1, end - 1, dtype=np.uint32).tobytes())
        files["log_p"].write(row.logprobs[:output].astype(np.float32).tobytes())
        if kept:
            assert row.top_ids is not None
            assert row.top_logprobs is not None
            for name, values, kind in (("top_ids", row.top_ids, np.uint32), ("top_log_p", row.top_logprobs, np.float32)):
                of_output = values.reshape(len(row.output_ids), -1)[:output, :kept]
                files[name].write(np.ascontiguousarray(of_output, dtype=kind).tobytes())
        begin, count = end, count + output
    files["tokens"].write(tokens.tobytes())
    files["rows"].write(rows.tobytes())
    files["counts"].write(np.uint32(count).tobytes())
