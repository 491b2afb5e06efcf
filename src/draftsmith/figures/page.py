"""One self-contained HTML page: pictures as SVG inside it, tables, and no network. It follows the reader's light or dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from draftsmith.core.store import write_atomic
from draftsmith.figures.save import svg

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
       background: #fff; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.lead { font-size: 1.15rem; border-left: .3rem solid #3b7dd8; padding: .4rem 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
.dark { display: none; }
@media (prefers-color-scheme: dark) {
  body { background: #1b1d21; color: #ddd; } .light { display: none; } .dark { display: block; }
}
"""


@dataclass(frozen=True)
class Section:
    """A heading, a sentence, and then a chart or a table (or both)."""

    heading: str
    text: str = ""
    chart: Any = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page atomically."""
    body = "\n".join(_section(one) for one in sections)
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n'
        f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{body}\n</html>\n'
    )
    write_atomic(path, lambda partial: partial.write_text(page))


def _section(one: Section) -> str:
    parts = [f"<h2>{escape(one.heading)}</h2>"]
    if one.text:
        parts.append(f"<p>{escape(one.text)}</p>")
    if one.chart is not None:
        light, dark = svg(one.chart, dark=False), svg(one.chart, dark=True)
        parts.append(f'<figure><div class="light">{light}</div><div class="dark">{dark}</div></figure>')
    if one.rows:
        head = "".join(f"<th>{escape(name)}</th>" for name in one.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in one.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "\n".join(parts)
