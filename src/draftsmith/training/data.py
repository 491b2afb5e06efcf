"""Training text: many domains, tokenised once, packed into sequences of one length, in an order that is known from a number.

The n-th sequence of a run depends on n and the seed alone: its domain by the weights, which of that domain's by how many came
before, shuffled anew each time the domain has been gone through. So a run resumes from one number, on any number of ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import DataError
from draftsmith.core.store import digest, write_atomic
from draftsmith.core.trace import TraceReader
from draftsmith.core.vocabulary import check_same_tokens
from draftsmith.datasets._reading import file_lines, file_rows
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.training.mesh import World

Tokens = np.ndarray[tuple[int], np.dtype[np.uint32]]
_BLOCK = 1000  # sequences in which every domain has its exact share
_DOCUMENTS = 256  # tokenised at once
_SUFFIXES = (".jsonl", ".txt")


class TextSource(StrictConfig):
    """Text of one domain: JSONL files with a field `text`, plain text, a folder of either, or a recorded trace."""

    path: str
    weight: float = Field(1.0, gt=0)

    def stamp(self) -> list[tuple[str, int, int]]:
        """What says that the text is still the same: names, sizes and times of its files."""
        path = Path(self.path)
        files = [path / "record.json"] if _is_trace(path) else _files(path)
        return [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in files]


def _is_trace(path: Path) -> bool:
    return (path / "record.json").exists()


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES)
    if not files:
        raise DataError(
            f"{path} is no file and holds no {' or '.join(_SUFFIXES)} file",
            "give `text` a file, a folder of them, or the folder of a trace",
        )
    return files


def tokenise(source: TextSource, model: Checkpoint, folder: Path) -> Path:
    """The domain's tokens in one flat file, documents apart by the end token. What was tokenised before is not done again."""
    if model.tokenizer.eos_token_id is None:
        raise DataError(f"{model.path} has no end token to put between documents", "set the eos_token of its tokenizer")
    name = digest([source.path, source.stamp(), digest(model.tokenizer.get_vocab())])[:16]
    path = folder / f"{name}.tokens"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda partial: _write(source, model, partial))
    return path


def _write(source: TextSource, model: Checkpoint, path: Path) -> None:
    end = np.array([model.tokenizer.eos_token_id], dtype=np.uint32)
    with path.open("wb") as file:
        for document in _documents(Path(source.path), model):
            file.write(np.concatenate([document, end]).astype(np.uint32).tobytes())


def _documents(path: Path, model: Checkpoint) -> Iterator[Tokens]:
    if _is_trace(path):
        yield from _trace_documents(path, model)
        return
    tokenizer = model.tokenizer
    waiting: list[str] = []
    for text in _texts(path):
        waiting.append(text)
        if len(waiting) == _DOCUMENTS:
            yield from _encode(tokenizer, waiting)
            waiting.clear()
    if waiting:
        yield from _encode(tokenizer, waiting)


def _encode(tokenizer: Any, texts: list[str]) -> Iterator[Tokens]:
    for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
        yield np.array(ids, dtype=np.uint32)


def _trace_documents(folder: Path, model: Checkpoint) -> Iterator[Tokens]:
    trace = TraceReader(folder)
    trace.refuse_test()
    check_same_tokens(trace.vocabulary(), model.vocabulary)
    for row in trace.rows():
        yield np.concatenate([row.prompt_ids, row.output_ids[: row.num_output]]).astype(np.uint32)


def _texts(path: Path) -> Iterator[str]:
    for file in _files(path):
        if file.suffix == ".jsonl":
            yield from (row.text("text") for row in file_rows(file))
        else:
            yield "".join(line for _, line in file_lines(file))


def text_identity(sources: Mapping[str, TextSource]) -> dict[str, Any]:
    """What a run's outcome depends on: the text, not where it lies."""
    return {name: [source.weight, source.stamp()] for name, source in sources.items()}


@dataclass(frozen=True)
class Domain:
    """A domain's tokens, and its share of a run."""

    name: str
    tokens: Tokens
    weight: float


class PackedText:
    """Sequences of `length` tokens out of several domains."""

    def __init__(self, domains: Sequence[Domain], length: int, seed: int) -> None:
        for domain in domains:
            if len(domain.tokens) < length:
                raise DataError(
                    f"the domain {domain.name} has {len(domain.tokens)} tokens, less than one sequence of {length}",
                    "give it more text, or train on shorter sequences",
                )
        self.domains, self.length, self._seed = tuple(domains), length, seed
        self._quota = _quotas([domain.weight for domain in domains])
        self._block = lru_cache(maxsize=4)(self._make_block)
        self._order = lru_cache(maxsize=2 * len(domains))(self._make_order)

    def sequence(self, n: int) -> Tokens:
        """The n-th sequence of a run."""
        which, before = self._place(n)
        tokens = self.domains[which].tokens
        count = len(tokens) // self.length
        at = int(self._order(which, before // count)[before % count])
        return np.asarray(tokens[at * self.length : (at + 1) * self.length])

    def _place(self, n: int) -> tuple[int, int]:
        """Its domain, and how many of that domain came before."""
        block, at = divmod(n, _BLOCK)
        domain_B, rank_B = self._block(block)
        return int(domain_B[at]), block * int(self._quota[domain_B[at]]) + int(rank_B[at])

    def _make_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        domain_B = np.repeat(np.arange(len(self.domains)), self._quota)
        np.random.default_rng([self._seed, block]).shuffle(domain_B)
        rank_B = np.zeros(_BLOCK, dtype=np.int64)
        for which, quota in enumerate(self._quota):
            rank_B[domain_B == which] = np.arange(quota)
        return domain_B, rank_B

    def _make_order(self, which: int, round_: int) -> np.ndarray:
        count = len(self.domains[which].tokens) // self.length
        return np.random.default_rng([self._seed, 1 + which, round_]).permutation(count)


def open_text(
    sources: Mapping[str, TextSource], model: Checkpoint, folder: Path, length: int, seed: int, ranks: World
) -> PackedText:
    """Text in the tokens of a model. The first rank tokenises; the others wait and find it done."""
    if ranks.rank == 0:
        for source in sources.values():
            tokenise(source, model, folder)
    ranks.wait()
    domains = []
    for name, source in sources.items():
        path = tokenise(source, model, folder)
        tokens = np.memmap(path, dtype=np.uint32, mode="r") if path.stat().st_size else np.zeros(0, np.uint32)
        domains.append(Domain(name, tokens, source.weight))
    return PackedText(domains, length, seed)


def _quotas(weights: Sequence[float]) -> np.ndarray:
    """Whole numbers that add up to a block, as near to the weights as can be (largest remainders)."""
    exact = np.array(weights) / sum(weights) * _BLOCK
    quotas = np.floor(exact).astype(np.int64)
    missing = _BLOCK - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:missing]] += 1
    return quotas
