"""A draft with fewer output rows in vLLM: loaded by our plugin, it proposes what it proposes in transformers, and the target's
output stays what it was."""

from pathlib import Path

import pytest

from draftsmith import api
from tests.tiny import near_copy, tiny_of

pytest.importorskip("vllm")

ROWS, LOOKAHEAD = 24, 3
HEADS, GROUPED = {"num_attention_heads": 2}, {"num_key_value_heads": 1, "head_dim": 32}  # vLLM has no smaller ones on a CPU
ENGINE = {"dtype": "float32", "threads": 1, "max_model_len": 128}


@pytest.mark.parametrize("model_type", ["llama", "mistral", "opt", "qwen3"])
def test_it_is_loaded_and_changes_nothing_but_the_steps(model_type: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    target = tiny_of(tmp_path / "target", model_type, tied=False, **HEADS, **({} if model_type == "opt" else GROUPED))
    draft = near_copy(target, tmp_path / "draft", noise=0.05)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "w{i} w{(3 * i) % 60} w{i + 1}"}}\n' for i in range(59)))

    def recorded(split: str) -> Path:
        return api.record(
            target=target, datasets=("jsonl",), data=prompts, split=split, num_prompts=8, max_new_tokens=24,
            engine={"dtype": "float32", "threads": 1}, store=store,
        ).folder  # fmt: skip

    cut = api.prune(source=draft, trace=recorded("train"), shape={"rows": ROWS}, engine={"dtype": "float32"}, store=store)
    assert cut.record.shape.vocabulary == ROWS
    trimmed, trace = cut.folder / "model", recorded("test")
    replayed = api.evaluate(
        trace=trace, draft=trimmed, lookaheads=(LOOKAHEAD,), engine={"dtype": "float32"}, serve="vllm", store=store
    )
    live = api.evaluate_live(
        trace=trace, target=target, draft=trimmed, lookaheads=(LOOKAHEAD,), engine={"kind": "vllm", **ENGINE}, store=store
    )
    (cell,) = live.record.cells
    assert cell.differences == ()
    assert cell.tokens_per_step == pytest.approx(replayed.record.overall.at(LOOKAHEAD).tokens_per_step, rel=1e-6)
    assert cell.tokens_per_step > 1.05
