"""int8 weights on transformers: another model by a little, loaded as such, and only if torchao is there."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torchao")
pytest.importorskip("transformers")

from draftsmith.core.errors import EngineError, MissingDependencyError
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft
from draftsmith.core.sampling import Sampling
from draftsmith.engines.transformers import PLUGIN
from tests.contract.test_engines import requests
from tests.tiny import tiny_llama

CONFIG = EngineConfig(dtype="bfloat16", threads=2, batch_size=4, quantization="int8")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("int8") / "target")


def test_weights_are_int8_and_the_output_is_still_the_models(target: Path) -> None:
    with (
        PLUGIN.recorder(target, CONFIG) as quantised,
        PLUGIN.recorder(target, CONFIG.model_copy(update={"quantization": None})) as plain,
    ):
        weights = quantised._model.model.lm_head.weight
        assert type(weights).__module__.startswith("torchao")
        ours, theirs = (one.record(requests(), Sampling(), Limits(8, ())) for one in (quantised, plain))
    same = [(a.output_ids == b.output_ids).mean() for a, b in zip(ours, theirs, strict=True)]
    assert sum(same) / len(same) > 0.5


def test_the_draft_keeps_its_weights(target: Path) -> None:
    with PLUGIN.live(target, ModelDraft(path=str(target)), 2, Sampling(), CONFIG) as live:
        run = live.run(requests(), Limits(8, ()))
        assert type(live._proposer.model.model.lm_head).__name__ == "_PackedLinear"
    assert all(len(row.output_ids) == 8 for row in run.rows)


def test_other_methods_are_refused(target: Path) -> None:
    with (
        pytest.raises(EngineError, match="does not know the quantization 'int3'"),
        PLUGIN.recorder(target, CONFIG.model_copy(update={"quantization": "int3"})),
    ):
        pass


def test_without_torchao_it_says_what_to_install(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(MissingDependencyError, match="draftsmith\\[quantization\\]"), PLUGIN.recorder(target, CONFIG):
        pass
