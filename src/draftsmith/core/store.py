"""The run store: one folder a record, named by what it was made from.

    <root>/<kind>/<digest of the inputs>/record.json      the payload: the same inputs give the same bytes
                                         provenance.json  the sidecar: when, where, with which versions
                                         *.parquet        parts of a large payload

Every write is atomic: a killed run leaves the old file or the new one. `record.json` is written last, so a folder without
it is unfinished work that the next call with the same inputs takes up."""

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftsmith.core import provenance
from draftsmith.core.errors import RecordError
from draftsmith.core.log import log

RecordT = TypeVar("RecordT", bound=BaseModel)
_LONG_AGO_SECONDS = 3600.0  # a temporary file this old has no living writer


def digest(value: Any) -> str:
    """A stable name for plain data: sha256 of its canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in place in one step that survives a crash."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written: {error.strerror or error}", "make room there, or give --store another folder"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write canonical, readable JSON atomically."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(path, lambda partial: partial.write_text(text))


def read_json(path: Path) -> Any:
    """Read JSON that this package wrote."""
    try:
        return json.loads(path.read_text())
    except OSError:
        raise RecordError(f"there is no record at {path}", "check the path; `draftsmith record` makes traces") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path} is not JSON: {error}",
            "delete its folder and run the stage again, if a stage made it; mend the file, if not",
        ) from None


class Run:
    """One folder of the store: unfinished work, or a finished record."""

    def __init__(self, path: Path, inputs: dict[str, Any]) -> None:
        self.path, self.inputs = path, inputs
        self._marker = path / "versions.json"

    @property
    def is_complete(self) -> bool:
        return (self.path / "record.json").exists()

    @property
    def is_current(self) -> bool:
        """Complete, and made with the engine versions installed here (what is not installed here cannot be newer)."""
        if not self.is_complete:
            return False
        made, here = read_json(self._marker), provenance.packages()
        changed = {name: now for name in made if (now := here.get(name, here.get(f"{name}-cpu"))) not in (None, made[name])}
        if changed:
            log.warning("%s was made with %s, here is %s: making it again", self.path, made, changed)
        return not changed

    def begin(self, versions: dict[str, str]) -> None:
        """Take up unfinished work. What other engine versions made is set aside whole: two versions never mix."""
        if self._marker.exists() and (before := read_json(self._marker)) != versions:
            aside = self._aside(before)
            log.warning("%s was made with %s, here is %s: it is now %s", self.path, before, versions, aside.name)
            self.path.rename(aside)
            if self._aside(versions).exists():
                self._aside(versions).rename(self.path)
        if not self._marker.exists():
            write_json(self._marker, versions)

    def _aside(self, versions: dict[str, str]) -> Path:
        return self.path.with_name(f"{self.path.name}.{digest(versions)[:6]}")

    def finish(self, record: BaseModel, seconds: float | None = None) -> None:
        """Write the sidecar, then the payload: the record exists from here on. What killed writers left long ago goes."""
        for leftover in self.path.glob(".*.partial"):
            with suppress(FileNotFoundError):  # its writer may be just putting it in place
                if time.time() - leftover.stat().st_mtime > _LONG_AGO_SECONDS:
                    leftover.unlink()
        write_json(self.path / "provenance.json", provenance.collect(self.inputs, seconds).model_dump())
        write_json(self.path / "record.json", record.model_dump(mode="json"))


class Store:
    """All records below one folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def run(self, kind: str, inputs: dict[str, Any]) -> Run:
        """The folder that a record of this kind, made from these inputs, has or will have."""
        return Run(self.root / kind / digest(inputs)[:16], inputs)


def read_record(kind: type[RecordT], folder: Path) -> RecordT:
    """A finished record by its folder, refused unless it is of this kind and schema version."""
    path = folder / "record.json" if folder.is_dir() else folder
    if not path.exists():
        raise RecordError(
            f"{folder} holds no finished record",
            "check the path; if a run was interrupted, give the same command again and it goes on where it stopped",
        )
    values = read_json(path)
    if not isinstance(values, dict):
        raise RecordError(f"{path} is damaged: it holds no object", "delete its folder and run the stage again")
    expected = kind.model_fields["schema_version"].default
    if values.get("kind") != kind.model_fields["kind"].default:
        raise RecordError(f"{path} is a {values.get('kind')!r} record, not a {kind.__name__}", "name another folder")
    if values.get("schema_version") != expected:
        raise RecordError(
            f"{path} has schema version {values.get('schema_version')}, this draftsmith reads {expected}",
            "make the record again with this version, or install the version that made it",
        )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise RecordError(f"{path} is damaged: {error}", "delete its folder and run the stage again") from None
