"""Plain text: what is a paragraph."""

from pathlib import Path

import pytest

from draftsmith.core.errors import DataError
from draftsmith.datasets.text import MIN_CHARACTERS, PLUGIN, paragraphs

LONG = "word " * 50
WRAPPED = [f"line {number} of a hard-wrapped paragraph which a mailer broke\n" for number in range(5)]


def test_a_long_line_is_a_paragraph() -> None:
    assert list(paragraphs([f" {LONG}\n", f"other {LONG}\n"])) == [LONG.strip(), f"other {LONG}".strip()]


def test_short_lines_are_joined_until_a_blank_one() -> None:
    joined = "".join(WRAPPED).strip()
    assert list(paragraphs([*WRAPPED, " \n", "short\n", "\n", *WRAPPED])) == [joined, joined]


def test_headings_are_skipped_and_end_a_paragraph() -> None:
    heading = f" = = {LONG[:100]} = = \n"
    assert list(paragraphs([*WRAPPED, heading, *WRAPPED[:2], heading, *WRAPPED])) == ["".join(WRAPPED).strip()] * 2


def test_a_long_line_ends_a_wrapped_paragraph() -> None:
    assert list(paragraphs([*WRAPPED, LONG, "short"])) == ["".join(WRAPPED).strip(), LONG.strip()]


def test_the_least_length_is_exact() -> None:
    assert list(paragraphs(["a" * MIN_CHARACTERS, "", "b" * (MIN_CHARACTERS - 1)])) == ["a" * MIN_CHARACTERS]


def test_a_folder_is_read_by_name_and_repeats_go(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text(f"b {LONG}\na {LONG}\n")
    (tmp_path / "a.txt").write_text(f"a {LONG}\n")
    prompts = list(PLUGIN.prompts(tmp_path))
    assert [prompt.key[0] for prompt in prompts] == ["a", "b"]
    assert all(prompt.text == prompt.key for prompt in prompts)


def test_nothing_long_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short\n")
    with pytest.raises(DataError, match="has no prompts in it"):
        list(PLUGIN.prompts(tmp_path))


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError, match=r"a\.txt, line 2 is not UTF-8"):
        list(PLUGIN.prompts(tmp_path))


def test_it_needs_a_place() -> None:
    with pytest.raises(DataError, match="the data set 'text' is your own files"):
        list(PLUGIN.prompts(None))
    assert PLUGIN.hub_name is None
