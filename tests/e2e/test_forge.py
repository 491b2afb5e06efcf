"""Forging on tiny models: the tutorial as it stands, and a run that is killed goes on to the same draft."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.tiny import tiny_llama

ROOT = Path(__file__).resolve().parents[2]
# What tiny models and a test's patience allow.
SETTINGS = """
context: 16
train_prompts: 120
held_prompts: 12
live_prompts: 6
max_new_tokens: 24
first_steps: 5
shapes_tried: [3, 1]
learning: {batch: 4, length: 32, precision: float32}
rates: [0.001, 0.003]
timing: {steps: 3, min_rounds: 2, max_rounds: 2}
engine: {dtype: float32, threads: 1}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forge")
    tiny_llama(folder / "target", layers=8)
    rows = [{"prompt": f"w{i} w{(3 * i + j) % 60} w{(i + j) % 60}"} for i in range(59) for j in range(6)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "settings.yaml").write_text(SETTINGS)
    return folder


def environment(place: Path, store: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"TARGET": place / "target", "PROMPTS": place / "prompts.jsonl", "DRAFTSMITH_STORE": store, "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PATH": path, **{name: str(value) for name, value in own.items()}}


def forged(store: Path) -> tuple[Path, dict[str, object]]:
    (folder,) = (store / "forged").iterdir()
    return folder, json.loads((folder / "record.json").read_text())


@pytest.mark.timeout(900)
def test_the_tutorial_ends_with_a_draft_that_vllm_loads(place: Path) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("vl_convert")
    text = (ROOT / "docs" / "first-draft.md").read_text()
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    script = script.replace("--budget 25m", f"--budget 0.6m --config {place / 'settings.yaml'}")
    script = script.replace("Why is the sky blue?", "w1 w2 w3")
    # In bfloat16 vLLM's CPU build dies of an illegal instruction with a model as tiny as this (docs/log.md).
    script = script.replace("enforce_eager=True", 'enforce_eager=True, dtype="float32"')
    store = place / "store"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], env=environment(place, store), cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    folder, record = forged(store)
    names = {one["name"] for one in record["contenders"]}  # type: ignore[attr-defined]
    assert {"forged", "untrained cut", "prompt lookup"} <= names
    assert (folder / "model" / "config.json").exists()
    assert (folder / "forged.html").exists()
    assert "w" in done.stdout.splitlines()[-1]


@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_to_the_same_draft(place: Path, tmp_path: Path) -> None:
    """Given the decisions of a run that was not interrupted, one that is killed again and again makes the same draft."""
    command = [sys.executable, "-m", "draftsmith", "forge", "--target", str(place / "target"), "--dataset", "jsonl"]
    command += ["--data", str(place / "prompts.jsonl"), "--budget", "0.5m", "--config", str(place / "settings.yaml")]
    subprocess.run(command, env=environment(place, tmp_path / "whole"), cwd=place, capture_output=True, check=True)
    folder, whole = forged(tmp_path / "whole")
    again = tmp_path / "killed" / "forged" / folder.name
    again.mkdir(parents=True)
    shutil.copy(folder / "decisions.json", again)
    for seconds in (9, 14, 19):
        running = subprocess.Popen(command, env=environment(place, tmp_path / "killed"), cwd=place, start_new_session=True)
        time.sleep(seconds)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    subprocess.run(command, env=environment(place, tmp_path / "killed"), cwd=place, capture_output=True, check=True)
    _, finished = forged(tmp_path / "killed")
    drafts = [{one["name"]: one["fingerprint"] for one in run["contenders"]} for run in (whole, finished)]  # type: ignore[attr-defined]
    assert drafts[0] == drafts[1]
