"""Tiny checkpoints that the engine tests share."""

from pathlib import Path

import pytest

from tests.tiny import near_copy, tiny_llama


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def draft(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Often agrees with the target."""
    return near_copy(target, tmp_path_factory.mktemp("draft"), noise=0.3)
