"""The settings of engines and drafts."""

import pytest

from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError
from draftsmith.core.protocols import EngineConfig, NgramDraft
from draftsmith.core.sampling import Sampling


@pytest.mark.parametrize(
    "values", [{"batch_size": 0}, {"tensor_parallel": 0}, {"threads": 0}, {"dtype": "int8"}, {"max_model_len": 1}]
)
def test_an_engine_that_cannot_be(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=f"{name} should .*got {values[name]!r}"):
        parse_config(EngineConfig, values, "the engine")


@pytest.mark.parametrize("values", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"seed": -1}])
def test_a_sampling_that_cannot_be(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=f"{name} should .*got {values[name]!r}"):
        parse_config(Sampling, values, "the sampling")


def test_temperature_0_is_greedy() -> None:
    assert Sampling().is_greedy
    assert not Sampling(temperature=0.01).is_greedy


def test_a_shortest_ngram_above_the_longest() -> None:
    with pytest.raises(ConfigError, match="min_ngram 3 is above max_ngram 2"):
        parse_config(NgramDraft, {"max_ngram": 2, "min_ngram": 3}, "the draft")
