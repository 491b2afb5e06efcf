"""The README's quickstart as it stands, on tiny models: the commands, then the same in Python."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("vl_convert")

from tests.tiny import tiny_llama

ROOT = Path(__file__).resolve().parents[2]


def block(language: str) -> str:
    (only,) = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return only


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a target, a draft and prompts."""
    tiny_llama(tmp_path / "target", seed=0)
    tiny_llama(tmp_path / "draft", seed=1)
    rows = [{"prompt": " ".join(f"w{(7 * i + j) % 60}" for j in range(4 + i % 3))} for i in range(12)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(command: list[str], place: Path) -> str:
    given = {
        "TARGET": place / "target",
        "DRAFT": place / "draft",
        "PROMPTS": place / "prompts.jsonl",
        "DRAFTSMITH_STORE": place / "store",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **{name: str(value) for name, value in given.items()}}
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_quickstart_runs_as_it_stands(place: Path) -> None:
    store = place / "store"
    run(["bash", "-euo", "pipefail", "-c", block("bash")], place)
    pictures = list(store.glob("scorecards/*/tokens_per_step.png"))
    assert len(pictures) == 2  # of the draft, and of prompt lookup
    assert all(picture.stat().st_size > 1000 for picture in pictures)
    (live,) = store.glob("live/*/record.json")
    assert [cell["lookahead"] for cell in json.loads(live.read_text())["cells"]] == [0, 3]

    records = {path: path.stat().st_mtime_ns for path in store.rglob("record.json")}
    assert len(records) == 4
    printed = run([sys.executable, "-c", block("python")], place)
    assert printed.count("tokens per step") == 8
    assert Path(printed.splitlines()[-1]).is_file()
    assert {path: path.stat().st_mtime_ns for path in store.rglob("record.json")} == records, "Python made records of its own"
