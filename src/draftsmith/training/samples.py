"""What is learnt from: sequences of one length, out of running text or of recorded output.

Of text every token is to be predicted. Recorded rows are packed whole, several to a sequence, each seeing only itself; only
what the target wrote is to be predicted, because a draft is asked for nothing else."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np

Tokens = np.ndarray[tuple[int], np.dtype[np.uint32]]


def numbers(path: Path, kind: type) -> np.ndarray:
    """A file of numbers, read as they are needed; an empty one cannot be mapped."""
    return np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.zeros(0, kind)


@dataclass(frozen=True)
class Sample:
    """One sequence. S tokens, P of them `asked`: the token after each is to be predicted. Of the target's most likely K, None
    where nobody recorded them. Without `row_S`, all tokens are of one row."""

    tokens_S: Tokens
    asked_P: np.ndarray
    row_S: np.ndarray | None = None
    log_p_P: np.ndarray | None = None
    top_ids_PK: np.ndarray | None = None
    top_log_p_PK: np.ndarray | None = None

    def keeping(self, kept: int) -> Self:
        """With no more than so many of the target's most likely tokens."""
        if self.top_ids_PK is None or self.top_log_p_PK is None:
            return self
        if kept == 0:
            return replace(self, top_ids_PK=None, top_log_p_PK=None)
        return replace(self, top_ids_PK=self.top_ids_PK[:, :kept], top_log_p_PK=self.top_log_p_PK[:, :kept])


class Domain(Protocol):
    """Sequences of one kind. `kept`: how many of the target's most likely tokens are known at every place."""

    @property
    def kept(self) -> int: ...

    def __len__(self) -> int: ...

    def sample(self, at: int) -> Sample: ...

    def num_asked(self, at: int) -> int: ...


class TextDomain:
    """Running text: flat tokens, cut into sequences."""

    kept = 0

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return len(self._tokens) // self._length

    def sample(self, at: int) -> Sample:
        tokens = np.asarray(self._tokens[at * self._length : (at + 1) * self._length])
        return Sample(tokens, np.arange(self._length - 1))

    def num_asked(self, at: int) -> int:
        return self._length - 1


class RowDomain:
    """Recorded rows as `pack_rows` left them in a folder."""

    def __init__(self, folder: Path, length: int) -> None:
        def column(name: str, kind: type, *shape: int) -> np.ndarray:
            return numbers(folder / name, kind).reshape(-1, *shape)

        self._tokens_MS = column("tokens", np.uint32, length)
        self._rows_MS = column("rows", np.uint32, length)
        self._starts = np.concatenate([[0], np.cumsum(column("counts", np.uint32).reshape(-1).astype(np.int64))])
        self._asked, self._log_p = column("asked", np.uint32).reshape(-1), column("log_p", np.float32).reshape(-1)
        kept = int((folder / "kept").read_text())
        self._top = (column("top_ids", np.uint32, kept), column("top_log_p", np.float32, kept)) if kept else None

    def __len__(self) -> int:
        return len(self._tokens_MS)

    @property
    def kept(self) -> int:
        return 0 if self._top is None else int(self._top[0].shape[1])

    def sample(self, at: int) -> Sample:
        part = slice(int(self._starts[at]), int(self._starts[at + 1]))
        return Sample(
            tokens_S=np.asarray(self._tokens_MS[at]),
            asked_P=np.asarray(self._asked[part]),
            row_S=np.asarray(self._rows_MS[at]),
            log_p_P=np.asarray(self._log_p[part]),
            top_ids_PK=None if self._top is None else np.asarray(self._top[0][part]),
            top_log_p_PK=None if self._top is None else np.asarray(self._top[1][part]),
        )

    def num_asked(self, at: int) -> int:
        return int(self._starts[at + 1] - self._starts[at])
