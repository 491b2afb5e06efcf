"""What every data set is read with: rows of JSON from a file or from the Hugging Face hub, their fields checked, and
prompts yielded once each in file order. What is wrong with the data becomes a DataError that names file and line."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.core.errors import DataError, MissingDependencyError
from draftsmith.core.prompts import Message, Prompt

_REPAIR = "correct it, or download the file again"


@dataclass  # not frozen: the Dataset protocol's `hub_name` is a plain attribute
class FileDataset:
    """A data-set plugin: `read` yields the prompts of a folder, or of the hub if there is none."""

    hub_name: str | None
    read: Callable[[Path | None], Iterator[Prompt]]

    def prompts(self, folder: Path | None) -> Iterator[Prompt]:
        """Every prompt in file order; a repeated key is yielded once and a blank one never."""
        seen: set[bytes] = set()  # digests, so that a large corpus is not held in memory
        for prompt in self.read(folder):
            digest = hashlib.sha256(prompt.key.encode()).digest()
            if prompt.key.strip() and digest not in seen:
                seen.add(digest)
                yield prompt
        if not seen:
            raise DataError(f"{folder or self.hub_name} has no prompts in it", "check what the files hold")


@dataclass(frozen=True)
class Hub:
    """One split on the Hugging Face hub; `data_file` picks one file of a repository that holds other things too."""

    name: str
    split: str
    config: str | None = None
    data_file: str | None = None


@dataclass(frozen=True)
class Source:
    """Where one file of rows is: `folder/file` below the data folder, or on the hub. `home` is where people get it."""

    folder: str
    file: str
    home: str
    hub: Hub | None

    @property
    def way_out(self) -> str:
        return f"get it from {self.home} and give --data DIR, where DIR holds {self.folder}/{self.file}"


@dataclass(frozen=True)
class Row:
    """One row, and where it stands for the error messages."""

    where: str
    values: dict[str, Any]

    def text(self, field: str) -> str:
        value = self._value(field)
        if not _is_text(value):
            raise self.wrong(field, "valid text")
        return str(value)

    def texts(self, field: str) -> list[str]:
        value = self._value(field)
        if not isinstance(value, list) or not value or not all(_is_text(item) for item in value):
            raise self.wrong(field, "a list of texts")
        return value

    def index(self, field: str, size: int) -> int:
        value = self._value(field)
        if type(value) is not int or not 0 <= value < size:
            raise self.wrong(field, f"a whole number from 0 to {size - 1}")
        return value

    def wrong(self, field: str, wanted: str) -> DataError:
        return DataError(f"{self.where}: the field {field!r} is not {wanted}: {self.values[field]!r:.80}", _REPAIR)

    def _value(self, field: str) -> Any:
        if field not in self.values:
            found = ", ".join(self.values) or "none"
            raise DataError(f"{self.where}: there is no field {field!r}; the fields are {found}", _REPAIR)
        return self.values[field]


def user_prompt(dataset: str, turn: str) -> Prompt:
    """A chat of one user turn, which is its own key."""
    return Prompt(dataset=dataset, key=turn, messages=(Message(role="user", content=turn),))


def read_rows(source: Source, folder: Path | None) -> Iterator[Row]:
    """The rows of a source. `folder` may be the data set's own, or the one that holds it under its usual name."""
    if folder is not None:
        return file_rows(_locate(source, folder))
    if source.hub is None:
        raise DataError(f"{source.folder}/{source.file} is not on the Hugging Face hub", source.way_out)
    return _hub_rows(source, source.hub)


def file_rows(path: Path) -> Iterator[Row]:
    """The rows of one JSONL file, plain or gzipped. Blank lines are skipped."""
    for where, line in file_lines(path):
        if line.strip():
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where} is not JSON: {error}", _REPAIR) from None
            if not isinstance(values, dict):
                raise DataError(f"{where} is a JSON {type(values).__name__}, not an object", _REPAIR)
            yield Row(where, values)


def file_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a UTF-8 file, plain or gzipped, after the words that say where it stands."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                try:
                    yield where, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{where} is not UTF-8: {error.reason}", _REPAIR) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}", "check its permissions, or download it again") from None


def list_files(dataset: str, place: Path | None, suffixes: tuple[str, ...], usual: str) -> list[Path]:
    """The files at a place, by name: the file itself, a folder's files, or those of the `usual` folder within it."""
    kinds = " or ".join(suffixes)
    way_out = f"give --data PATH, a {kinds} file or a folder of them"
    if place is None:
        raise DataError(f"the data set {dataset!r} is your own files and has no name on the hub", way_out)
    if place.is_file():
        if not place.name.endswith(suffixes):
            raise DataError(f"{place} is not a {kinds} file", way_out)
        return [place]
    if not place.is_dir():
        raise DataError(f"there is no file or folder {place}", way_out)
    for folder in (place, place / usual):
        if files := sorted(path for path in folder.glob("*") if path.name.endswith(suffixes)):
            return files
    raise DataError(f"{place} holds no {kinds} file", way_out)


def _locate(source: Source, folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}", source.way_out)
    for base in (folder / source.folder, folder):
        for name in (source.file, f"{source.file}.gz"):
            if (base / name).is_file():
                return base / name
    raise DataError(f"{folder} holds no {source.file}, nor does its folder {source.folder}", source.way_out)


def _hub_rows(source: Source, hub: Hub) -> Iterator[Row]:
    try:
        # Hugging Face's package, not draftsmith.datasets. Imported here: reading local files does not need it.
        from datasets import load_dataset
    except ImportError as error:
        raise MissingDependencyError(
            f"reading {hub.name} from the Hugging Face hub needs the package 'datasets': {error}",
            f"pip install 'draftsmith[datasets]'; or {source.way_out}",
        ) from None
    try:
        rows = load_dataset(hub.name, hub.config, split=hub.split, data_files=hub.data_file, streaming=True)
        for number, values in enumerate(rows, start=1):
            yield Row(f"{hub.name}, split {hub.split}, row {number}", dict(values))
    except Exception as error:  # the hub, the network and the parsers below raise kinds of their own
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(
            f"{hub.name} could not be read from the Hugging Face hub: {reason}",
            f"check the network; or {source.way_out}",
        ) from error


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair, which no tokenizer takes
        return False
