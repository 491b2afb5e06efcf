"""The page: everything inside it, for light and for dark, and nothing a reader wrote is taken for HTML."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftsmith.figures.page import Section, write_page
from draftsmith.figures.tokens_per_step import tokens_per_step
from tests.unit.builders import scorecard

_FETCHES = re.compile(
    r"""(?:src|href|srcset|data|action)\s*=\s*["']?\s*(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import""", re.I
)


@pytest.fixture(scope="module")
def chart() -> Any:
    return tokens_per_step(scorecard())


def page(folder: Path, *sections: Section, title: str = "title", lead: str = "lead") -> str:
    write_page(folder / "page.html", title, lead, sections)
    assert [path.name for path in folder.iterdir()] == ["page.html"]
    return (folder / "page.html").read_text()


class Reader(HTMLParser):
    """The text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._open.append(tag)
        self.found.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[self._open[-1]][-1] += data


def test_nothing_is_fetched(tmp_path: Path, chart: Any) -> None:
    text = page(tmp_path, Section("picture", chart=chart))
    assert _FETCHES.search(text) is None
    for tag in ("<script", "<link", "<img", "<iframe"):
        assert tag not in text
    addresses = set(re.findall(r"https?://[\w./]+", text))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of formats, which nobody opens


def test_a_picture_is_there_for_light_and_for_dark(tmp_path: Path, chart: Any) -> None:
    text = page(tmp_path, Section("picture", chart=chart))
    light, dark = re.findall(r'<div class="(light|dark)"><svg', text)
    assert (light, dark) == ("light", "dark")
    first, second = text.split('<div class="dark">')
    assert "#1b1d21" not in first.split("</style>")[1]
    assert "#1b1d21" in second
    assert "prefers-color-scheme: dark" in text


def test_no_two_elements_have_one_name(tmp_path: Path, chart: Any) -> None:
    """A picture would be clipped by the one that is hidden."""
    clipped = chart.copy(deep=True)
    clipped.layer[0].mark.clip = True
    names = re.findall(r'\bid="([^"]*)"', page(tmp_path, Section("one", chart=clipped), Section("two", chart=clipped)))
    assert len(names) >= 4
    assert len(set(names)) == len(names)


def test_headings_texts_and_tables(tmp_path: Path) -> None:
    table = Section("heading", "a sentence", columns=("batch", "tokens/s"), rows=[("1", "99.5"), ("4", "300.1")])
    found = Reader(page(tmp_path, table, Section("another"), title="the title", lead="the lead")).found
    assert (found["title"], found["h1"]) == (["the title"], ["the title"])
    assert found["p"] == ["the lead", "a sentence"]
    assert found["h2"] == ["heading", "another"]
    assert found["th"] == ["batch", "tokens/s"]
    assert found["td"] == ["1", "99.5", "4", "300.1"]
    assert len(found["table"]) == 1


def test_names_are_text_and_not_html(tmp_path: Path) -> None:
    name = "<script>alert('1')</script> & co"
    section = Section(name, name, columns=(name,), rows=[(name,)])
    text = page(tmp_path, section, title=name, lead=name)
    assert "<script" not in text
    found = Reader(text).found
    for tag in ("title", "h1", "h2", "th", "td"):
        assert found[tag] == [name]


def test_it_says_how_it_is_written(tmp_path: Path) -> None:
    text = page(tmp_path, lead="1.5 ± 0.1 x, R²")
    assert text.startswith("<!doctype html>")
    assert '<meta charset="utf-8">' in text
    assert "1.5 ± 0.1 x, R²" in (tmp_path / "page.html").read_bytes().decode("utf-8")
