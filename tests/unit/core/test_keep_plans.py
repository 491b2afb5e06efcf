"""Keep-plans: what they leave of a shape, and every plan that no checkpoint can have refused in words."""

from typing import Any

import pytest

from draftsmith.core import registry
from draftsmith.core.errors import ModelError, PlanError
from draftsmith.core.families import check_shape, family_of
from draftsmith.core.keep_plans import KeepPlan, KeptLayer
from tests.unit.builders import assert_explains, shape

SOURCE = shape(layers=3, heads=4, kv_heads=2, head_size=8, hidden=32, intermediate=6)


def layer(**changed: Any) -> KeptLayer:
    return KeptLayer(**{"index": 0, "heads": (0, 1), "kv_heads": (0,), "neurons": (0, 5), **changed})


def test_everything_is_the_source() -> None:
    plan = KeepPlan.everything(SOURCE)
    plan.check(SOURCE)
    assert plan.shape(SOURCE) == SOURCE


def test_the_shape_of_what_stays() -> None:
    plan = KeepPlan(hidden=(1, 30, 31), layers=(layer(), layer(index=2, heads=(2, 3), kv_heads=(1,), neurons=(1, 2))))
    plan.check(SOURCE)
    changed = {"layers": 2, "heads": 2, "kv_heads": 1, "hidden": 3, "intermediate": 2}
    assert plan.shape(SOURCE) == SOURCE.model_copy(update=changed)


@pytest.mark.parametrize(
    ("hidden", "layers", "says"),
    [
        ((), (layer(),), "the hidden dimensions to keep are not some of 0 to 31"),
        ((0, 32), (layer(),), "the hidden dimensions to keep are not some of 0 to 31"),
        ((1, 0), (layer(),), "the hidden dimensions to keep are not some of 0 to 31"),
        ((0,), (layer(index=3),), "the layers to keep are not some of 0 to 2"),
        ((0,), (layer(), layer()), "the layers to keep are not some of 0 to 2"),
        ((0,), (layer(neurons=(6,)),), "the neurons of layer 0 to keep are not some of 0 to 5"),
        ((0,), (layer(heads=(0, 0)),), "the heads of layer 0 to keep are not some of 0 to 3"),
        ((0,), (layer(), layer(index=1, neurons=(0,))), "layer 1 keeps 1 neurons, layer 0 2"),
        ((0,), (layer(heads=(0, 2)),), r"layer 0 keeps the heads \[0, 2\] with the kv heads \[0\]"),
        ((0,), (layer(heads=(0, 1, 2), kv_heads=(0, 1)),), "each kv head of this source serves 2 heads in a row"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(hidden: tuple[int, ...], layers: tuple[KeptLayer, ...], says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        KeepPlan(hidden=hidden, layers=layers).check(SOURCE)
    assert_explains(caught.value, way_out=" ")


@pytest.mark.parametrize(
    ("family", "wanted", "says"),
    [
        ("llama", {"layers": 4}, "4 layers cannot be cut from 3"),
        ("llama", {"intermediate": 7}, "7 neurons cannot be cut from 6"),
        ("llama", {"heads": 3}, "3 heads cannot share 2 kv heads"),
        ("llama", {"heads": 4, "kv_heads": 1}, "4 heads cannot share 1 kv heads: in the source each serves 2"),
        ("llama", {"hidden": 30}, "a llama/mistral cannot have 30 hidden dimensions with 4 heads"),
        ("qwen2", {"hidden": 16}, "a qwen2 cannot have 16 hidden dimensions with 4 heads"),
    ],
)
def test_a_shape_that_cannot_be_had_is_refused(family: str, wanted: dict[str, int], says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        check_shape(registry.load("families", family), SOURCE, SOURCE.model_copy(update=wanted))
    assert_explains(caught.value, way_out=" ")


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("qwen3", {"hidden": 7}),
        ("llama", {"hidden": 4}),
        ("qwen2", {"heads": 2, "hidden": 16}),
        ("llama", {"kv_heads": 2, "heads": 2}),
    ],
)
def test_a_shape_that_can_be_had_passes(family: str, wanted: dict[str, int]) -> None:
    check_shape(registry.load("families", family), SOURCE, SOURCE.model_copy(update=wanted))


def test_a_model_of_no_family_is_refused() -> None:
    with pytest.raises(ModelError, match="model is a 'mamba', which no family here knows how to cut") as caught:
        family_of({"model_type": "mamba"}, "model")
    assert_explains(caught.value, way_out="one of llama, ")
