"""Plain text: reads a .txt file, or a folder of them by name; yields paragraphs of at least 200 characters, each its
own key. A line that long is a paragraph (WikiText has one a line); shorter lines are joined until a blank line, a
WikiText heading (`= Title =`) or such a long line ends them (hard-wrapped text). Headings are skipped."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, file_lines, list_files

MIN_CHARACTERS = 200


def read(place: Path | None) -> Iterator[Prompt]:
    for path in list_files("text", place, (".txt",), usual="wikitext2"):
        for paragraph in paragraphs(line for _, line in file_lines(path)):
            yield Prompt(dataset="text", key=paragraph, text=paragraph)


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """The paragraphs that are long enough."""
    block: list[str] = []
    for line in chain(lines, [""]):
        stripped = line.strip()
        is_long = len(stripped) >= MIN_CHARACTERS
        if stripped and not is_long and not _is_heading(stripped):
            block.append(line.rstrip())
            continue
        joined = "\n".join(block).strip()
        block.clear()
        if len(joined) >= MIN_CHARACTERS:
            yield joined
        if is_long:
            yield stripped


def _is_heading(line: str) -> bool:
    return line.startswith("= ") and line.endswith(" =")


PLUGIN: Dataset = FileDataset(None, read)
