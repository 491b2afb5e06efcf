"""The lab: real models and data sets. CI sets them up; without them these tests say what is missing and skip."""

import os
from pathlib import Path

import pytest


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        pytest.skip(f"{variable} names no folder: CONTRIBUTING.md says what belongs into it")
    return Path(value)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _folder("DRAFTSMITH_LAB") / "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def data() -> Path:
    return _folder("DRAFTSMITH_DATA")
