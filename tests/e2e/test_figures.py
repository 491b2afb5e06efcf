"""The claims that a change could break, each by a slice of the benchmark that publishes it, on both engines."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.lab
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["replay_equals_live", "lossless", "sampling_replay", "record_resume"])
def test_figure_holds_on_a_slice(name: str, smollm2: Path, data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
