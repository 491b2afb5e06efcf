"""Write a chart down: as PNG and SVG, and as a self-contained HTML page of its own."""

from pathlib import Path
from typing import Any

from draftsmith.core.errors import MissingDependencyError
from draftsmith.core.store import write_atomic

_PIXELS_PER_POINT = 2.0
_CONFIG = {"axis": {"labelFlush": False}}  # a label stays at its tick, also at the ends of an axis
# Vega's own dark theme, on a ground that is not quite black.
_DARK = {"background": "#1b1d21", "axis": {"gridColor": "#3a3d44", **_CONFIG["axis"]}}


def save_chart(chart: Any, folder: Path, name: str, page: bool = True) -> list[Path]:
    """The files written, best to look at first. Needs the extra `report`."""
    convert = _converter()
    spec = chart.to_json()
    pictures = {
        "png": convert.vegalite_to_png(spec, scale=_PIXELS_PER_POINT, config=_CONFIG),
        "svg": convert.vegalite_to_svg(spec, config=_CONFIG).encode(),
    }
    if page:
        pictures["html"] = convert.vegalite_to_html(spec, bundle=True, config=_CONFIG).encode()
    paths = []
    for ending, content in pictures.items():
        path = folder / f"{name}.{ending}"
        write_atomic(path, lambda partial, content=content: partial.write_bytes(content))  # type: ignore[misc]
        paths.append(path)
    return paths


def svg(chart: Any, dark: bool) -> str:
    """The chart as SVG text, for a light or a dark ground."""
    convert = _converter()
    if not dark:
        return str(convert.vegalite_to_svg(chart.to_json(), config=_CONFIG))
    return str(convert.vegalite_to_svg(chart.to_json(), theme="dark", config=_DARK))


def _converter() -> Any:
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise MissingDependencyError("pictures need vl-convert", "pip install 'draftsmith[report]'") from None
    return vl_convert
