"""What a run has decided, and how long its parts took: written down before it is acted upon.

Decisions may hang on the clock and on what was measured. A run that was killed reads them and goes on the same way."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftsmith.core.log import log
from draftsmith.core.store import read_json, write_json

_SECONDS = "seconds: "


class Decisions:
    """Kept in `decisions.json` of a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "decisions.json"

    def decide(self, name: str, make: Callable[[], Any]) -> Any:
        """What was decided once stays decided."""
        if name not in (made := self._made()):
            value = make()
            made = {**self._made(), name: value}  # which may have decided other things meanwhile
            write_json(self._path, made)
            if not name.startswith(_SECONDS):
                log.info("decided: %s: %s", name, value)
        return made[name]

    def timed(self, what: str, work: Callable[[], Path]) -> Path:
        """Do it, and write down how long it took. A run that goes on finds it done and leaves the time as it was."""
        log.info("forge, after %.0f minutes: %s", self.seconds() / 60, what)
        began = time.monotonic()
        folder = work()
        self.decide(f"{_SECONDS}{what}", lambda: time.monotonic() - began)
        return folder

    def seconds(self) -> float:
        """Spent on all parts so far; of one that was killed, only since."""
        return float(sum(value for name, value in self._made().items() if name.startswith(_SECONDS)))

    def _made(self) -> dict[str, Any]:
        return read_json(self._path) if self._path.exists() else {}
