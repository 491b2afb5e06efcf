"""A quiet, known surrounding: no job's rank, no store of the user's, the logger as it was; and plugins of other packages."""

import logging
from collections.abc import Iterator

import pytest

from draftsmith.core import registry, timing
from draftsmith.core.log import log
from tests.unit.builders import FakeDataset, FakeEngine, Plugins


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command line sets the logger up for good; here every test finds it untouched."""
    for name in ("RANK", "SLURM_PROCID", "DRAFTSMITH_STORE"):
        monkeypatch.delenv(name, raising=False)
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    log.propagate = True
    log.setLevel(logging.NOTSET)
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """An engine and a data set, both called `fake`, as if another package had brought them."""
    there = Plugins(engines={"fake": FakeEngine()}, datasets={"fake": FakeDataset()})
    monkeypatch.setattr(registry, "_installed", there.installed)
    return there


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing else runs, and that knows it at once."""
    monkeypatch.setattr(timing, "others_share", lambda: 0.0)
    monkeypatch.setattr(timing, "_kept_share", lambda before, after: 0.0)


@pytest.fixture
def engine(plugins: Plugins) -> FakeEngine:
    """The engine called `fake`."""
    return plugins.engines["fake"]
