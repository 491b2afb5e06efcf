"""Where training text comes from: files or recorded traces, many domains, made ready once by the first rank."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
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
from draftsmith.training.order import Order, quotas
from draftsmith.training.packing import pack_rows
from draftsmith.training.samples import Domain, RowDomain, Sample, TextDomain, Tokens, numbers

_DOCUMENTS = 256  # tokenised at once
_SUFFIXES = (".jsonl", ".txt")
_SAMPLE_BYTES = 1 << 20


class TextSource(StrictConfig):
    """Text of one domain: JSONL files with a field `text`, plain text, a folder of either, or a recorded trace."""

    path: str
    weight: float = Field(1.0, gt=0)

    def stamp(self) -> list[Any]:
        """What says that the text is still the same, wherever it was copied to: a trace's own fingerprint, or names, sizes and
        samples of files."""
        if self.is_trace:
            return [TraceReader(Path(self.path)).record.fingerprint]
        return [(one.name, one.stat().st_size, _sampled(one)) for one in _files(Path(self.path))]

    @property
    def is_trace(self) -> bool:
        return (Path(self.path) / "record.json").exists()


def _sampled(path: Path) -> str:
    """Digest of the beginning, the middle and the end: a corpus may be too large to be read just to be named."""
    total, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        for at in (0, (size - _SAMPLE_BYTES) // 2, size - _SAMPLE_BYTES):
            file.seek(max(0, at))
            total.update(file.read(_SAMPLE_BYTES))
    return total.hexdigest()[:32]


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES)
    if not files:
        raise DataError(
            f"{path} is no file and holds no {' or '.join(_SUFFIXES)} file",
            "give `text` a file, a folder of them, or the folder of a trace",
        )
    return files


def text_identity(sources: Mapping[str, TextSource]) -> dict[str, Any]:
    """What a run's outcome depends on: the text, not where it lies."""
    return {name: [source.weight, source.stamp()] for name, source in sources.items()}


class Samples:
    """Sequences out of several domains, by number. `kept` of the target's most likely tokens are known in all of them."""

    def __init__(self, domains: Mapping[str, Domain], weights: Mapping[str, float], seed: int) -> None:
        for (name, domain), share in zip(domains.items(), quotas([weights[name] for name in domains]), strict=True):
            if len(domain) == 0:
                raise DataError(
                    f"the domain {name} has less than one sequence", "give it more text, or train on shorter sequences"
                )
            if share == 0:
                raise DataError(
                    f"the domain {name} would never be seen: its weight {weights[name]:g} is less than a 1000th of all",
                    "give it more weight, or leave it out",
                )
        self.domains = tuple(domains.values())
        self.kept = min(domain.kept for domain in self.domains)
        self._order = Order([len(domain) for domain in self.domains], [weights[name] for name in domains], seed)

    def sample(self, n: int) -> Sample:
        """The n-th sequence of a run."""
        which, at = self._order.place(n)
        return self.domains[which].sample(at).keeping(self.kept)

    def num_asked(self, n: int) -> int:
        """How many of its tokens are to be predicted."""
        which, at = self._order.place(n)
        return self.domains[which].num_asked(at)


def open_samples(
    sources: Mapping[str, TextSource], model: Checkpoint, folder: Path, length: int, seed: int, ranks: World
) -> Samples:
    """Text in the tokens of a model. The first rank makes it ready; the others wait and find it done."""
    if ranks.rank == 0:
        for source in sources.values():
            prepare(source, model, folder, length)
    ranks.wait()
    domains = {name: prepare(source, model, folder, length) for name, source in sources.items()}
    return Samples(domains, {name: source.weight for name, source in sources.items()}, seed)


def prepare(source: TextSource, model: Checkpoint, folder: Path, length: int) -> Domain:
    """A domain, tokenised or packed. What was done before is not done again."""
    name = digest([source.path, source.stamp(), digest(model.tokenizer.get_vocab())])[:16]
    folder.mkdir(parents=True, exist_ok=True)
    if source.is_trace:
        packed = folder / f"{name}-{length}"
        if not packed.exists():
            _pack(Path(source.path), model, length, packed)
        return RowDomain(packed, length)
    path = folder / f"{name}.tokens"
    if not path.exists():
        write_atomic(path, lambda partial: _tokenise(Path(source.path), model, partial))
    return TextDomain(numbers(path, np.uint32), length)


def _pack(path: Path, model: Checkpoint, length: int, folder: Path) -> None:
    trace = TraceReader(path)
    trace.refuse_test()
    check_same_tokens(trace.vocabulary(), model.vocabulary)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pack_rows(trace.rows(), length, trace.record.top_logprobs, partial)
    partial.rename(folder)


def _tokenise(path: Path, model: Checkpoint, partial: Path) -> None:
    """All documents in one flat file, apart by the end token."""
    if model.tokenizer.eos_token_id is None:
        raise DataError(f"{model.path} has no end token to put between documents", "set the eos_token of its tokenizer")
    end = np.array([model.tokenizer.eos_token_id], dtype=np.uint32)
    with partial.open("wb") as file:
        for document in _documents(path, model):
            file.write(np.concatenate([document, end]).astype(np.uint32).tobytes())


def _documents(path: Path, model: Checkpoint) -> Iterator[Tokens]:
    waiting: list[str] = []
    for text in _texts(path):
        waiting.append(text)
        if len(waiting) == _DOCUMENTS:
            yield from _encode(model.tokenizer, waiting)
            waiting.clear()
    if waiting:
        yield from _encode(model.tokenizer, waiting)


def _encode(tokenizer: Any, texts: list[str]) -> Iterator[Tokens]:
    for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
        yield np.array(ids, dtype=np.uint32)


def _texts(path: Path) -> Iterator[str]:
    for file in _files(path):
        if file.suffix == ".jsonl":
            yield from (row.text("text") for row in file_rows(file))
        else:
            yield "".join(line for _, line in file_lines(file))
