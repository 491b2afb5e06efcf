"""Write a chart as PNG, SVG and one self-contained HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING

from draftsmith.core.errors import MissingDependencyError
from draftsmith.core.store import write_atomic

if TYPE_CHECKING:
    import altair

_PIXELS_PER_POINT = 2.0


def save_chart(chart: "altair.Chart | altair.LayerChart", folder: Path, name: str) -> list[Path]:
    """The files written, best to look at first. Needs the extra `report`."""
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise MissingDependencyError("pictures need vl-convert", "pip install 'draftsmith[report]'") from None
    spec = chart.to_json()
    pictures = {
        "png": vl_convert.vegalite_to_png(spec, scale=_PIXELS_PER_POINT),
        "svg": vl_convert.vegalite_to_svg(spec).encode(),
        "html": vl_convert.vegalite_to_html(spec, bundle=True).encode(),
    }
    paths = []
    for ending, content in pictures.items():
        path = folder / f"{name}.{ending}"
        write_atomic(path, lambda partial, content=content: partial.write_bytes(content))  # type: ignore[misc]
        paths.append(path)
    return paths
