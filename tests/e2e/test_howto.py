"""The how-to pages as they stand, on tiny models: every `bash` block in order, and the files that the pages name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("transformers")
pytest.importorskip("vl_convert")

from tests.tiny import near_copy, tiny_llama

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to"
SHAPES = Path("examples") / "shapes" / "opt-350m.yaml"

# What a page says, and what tiny models (512 positions) and a test's patience allow.
INSTEAD = {
    "is-it-worth-it": {
        "draftsmith profile": "draftsmith profile --steps 3 --max-rounds 2",
        "--batch 1,4,16": "--batch 1,4 --lookahead 1,3",
        "--context 128,1024": "--context 16,128",
    },
    "how-many-tokens-ahead": {
        "draftsmith profile": "draftsmith profile --steps 3 --max-rounds 2",
        "--batch 1,4,16": "--batch 1,4 --lookahead 1,3",
        "--context 128,1024": "--context 16,128",
        "--context 1024": "--context 128",
    },
    "cut-a-draft": {
        "--max-new-tokens 128": "--max-new-tokens 24",
        "--layers 8": "--layers 1",
        "{layers: 8}": "{layers: 1}",
        "steps: 2000, batch: 64, micro_batch: 8, length: 1024": "steps: 4, batch: 8, micro_batch: 4, length: 16",
        "steps: 4000, batch: 64, micro_batch: 8, length: 1024, learning_rate": "steps: 4, batch: 8, length: 16, learning_rate",
    },
    "choose-a-shape": {
        "draftsmith profile": "draftsmith profile --steps 3 --max-rounds 2",
        "--batch 1,4,16 --context 128,1024": "--batch 1,4 --lookahead 1,3 --context 16",
        "--batch 1,4,16 --context 128": "--batch 1,4 --context 16",
        "--max-new-tokens 128": "--max-new-tokens 24",
        "in 2 8": "in 1 2",
        "--steps 200": "--steps 4 --batch 4 --length 32",
        "--batch 1=2,16=1": "--batch 1=2,4=1",
    },
    "keep-fewer-rows": {
        "--max-new-tokens 128": "--max-new-tokens 24",
        "1024,2048,4096,8192,16384,32768": "8,16,32",
        "--rows 8192": "--rows 16",
    },
    "teach-a-draft": {
        "--max-new-tokens 128": "--max-new-tokens 24",
        "--steps 4000 --batch 64 --length 1024": "--steps 4 --batch 4 --length 32 --check-every 2",
        "steps: 4000, batch: 64, micro_batch: 8, length: 1024": "steps: 4, batch: 4, micro_batch: 4, length: 32",
    },
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (HOW_TO / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)


def small(shape: dict[str, int]) -> dict[str, int]:
    """A shape of the example file, with heads of 4 instead of 64."""
    return {name: value if name == "num_attention_heads" else max(1, value // 16) for name, value in shape.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a draft that often agrees with it, prompts, and four of the example's shapes made small."""
    folder = tmp_path_factory.mktemp("howto")
    near_copy(tiny_llama(folder / "target", layers=3), folder / "draft", noise=0.3)
    rows = [{"prompt": " ".join(f"w{(7 * i + j) % 60}" for j in range(4 + i % 3))} for i in range(40)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": row["prompt"]}) + "\n" for row in rows))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shapes = yaml.safe_load((ROOT / SHAPES).read_text())
    shapes["architecture"] |= {"vocab_size": 64, "max_position_embeddings": 256}
    shapes["groups"] = {group: [small(one) for one in own[:2]] for group, own in list(shapes["groups"].items())[:2]}
    own = json.loads((folder / "target" / "config.json").read_text())
    sizes = [{"num_hidden_layers": n} for n in (1, 2, 4)] + [
        {"hidden_size": 128},
        {"intermediate_size": 256},
        {"vocab_size": 640},
    ]
    (folder / "shapes.yaml").write_text(yaml.safe_dump({"architecture": own, "groups": {"llama": sizes}}))
    (folder / SHAPES).parent.mkdir(parents=True)
    (folder / SHAPES).write_text(yaml.safe_dump(shapes))
    return folder


def run(script: str, place: Path) -> str:
    given = {
        "TARGET": place / "target",
        "DRAFT": place / "draft",
        "PROMPTS": place / "prompts.jsonl",
        "TEXT": place / "text.jsonl",
        "SHAPES": place / "shapes.yaml",
        "ENGINE": "transformers",
        "DRAFTSMITH_STORE": place / "store",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **{name: str(value) for name, value in given.items()}}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def records(place: Path, kind: str) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(place.glob(f"store/{kind}/*/record.json"))]


@pytest.mark.parametrize("page", INSTEAD)
def test_the_page_runs_as_it_stands(page: str, place: Path) -> None:
    script = "\n".join(blocks(page, "bash"))
    for said, done in INSTEAD[page].items():
        assert said in script, f"{page} no longer says {said!r}"
        script = re.sub(rf"{re.escape(said)}(?![\d,])", done, script)
    printed = " ".join(run(script, place).split())

    # What the page shows as output, it prints. Output that depends on the machine is shown as an example only.
    if page == "is-it-worth-it":
        (shown,) = blocks(page, "text")
        lines = [line for line in shown.splitlines() if re.match(r"Go|\s+any", line)]
        assert len(lines) == 3
        assert [line for line in lines if " ".join(line.split()) not in printed] == []
        assert (place / "shallow" / "config.json").is_file()
        assert len(records(place, "predictions")) == 3  # numbers typed in, the draft, the shape
        (shapes,) = records(place, "shapes")
        assert len(shapes["cells"]) == 4  # type: ignore[arg-type]
    elif page == "choose-a-shape":
        (made,) = records(place, "designs")
        assert len(made["probes"]) == 2  # type: ignore[arg-type]
        assert "Worth a probe next" in printed
    elif page == "keep-fewer-rows":
        (card,) = records(place, "rows")
        assert [one["rows"] for one in card["points"]] == [8, 16, 32, 64]  # type: ignore[attr-defined]
    elif page == "teach-a-draft":
        assert [len(one["curve"]) for one in records(place, "distilled") if one["held_out"]] == [4, 4]  # type: ignore[arg-type]
        assert "on what was held out" in printed
    elif page == "cut-a-draft":
        assert sorted(len(one["pruners"]) for one in records(place, "checkpoints")) == [1, 2]  # type: ignore[arg-type]
        assert "It fits." in printed
        (draft,) = place.glob("store/checkpoints/*/0-l0/tensorboard")
        assert any(draft.iterdir())
    else:
        assert any(one["replayed_batches"] for one in records(place, "predictions"))
        assert all(one["vllm_schedules"] for one in records(place, "predictions"))
        assert len(records(place, "profiles")) <= 2, "the second page repeats the first one's profile"

    text = (HOW_TO / f"{page}.md").read_text()
    named = set(re.findall(r"`(?:[\w-]+/)?([\w-]+\.(?:html|png|svg|jsonl?))`", text))
    assert named
    assert [name for name in sorted(named) if not any(place.rglob(name))] == []
