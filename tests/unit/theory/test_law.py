"""The acceptance law: it finds the slopes that made its probes, is surer with more of them, and never beyond what can be."""

import numpy as np
import pytest

from draftsmith.core.errors import PredictionError
from draftsmith.theory.latency import shape_arrays
from draftsmith.theory.law import Probe, fit_law
from tests.unit.builders import shape

SOURCE = shape(layers=24, hidden=1024, intermediate=4096, heads=16, kv_heads=8)


def made(layers: int, intermediate: int, tokens: float) -> Probe:
    """A world in which a doubling of layers is worth 0.5 logits, of neurons 0.2, of tokens 0.4; later proposals 0.3 more."""
    sizes = {"layers": layers, "intermediate": intermediate}
    logit = -0.5 + 0.5 * np.log2(layers / 24) + 0.2 * np.log2(intermediate / 4096) + 0.4 * np.log2(tokens / 1e6)
    logits = logit + np.array([0.0, 0.3, 0.3])
    return Probe(SOURCE.model_copy(update=sizes), tokens, tuple((1 / (1 + np.exp(-logits))).tolist()), (100.0, 80.0, 60.0))


PROBES = [made(2, 4096, 1e6), made(8, 4096, 1e6), made(4, 1024, 1e6), made(4, 4096, 4e6), made(12, 2048, 2e6)]


def test_it_finds_what_made_its_probes() -> None:
    law = fit_law(SOURCE, PROBES)
    unseen = made(6, 2048, 8e6)
    logit, std = law.logit(shape_arrays([unseen.shape]), 8e6)
    assert 1 / (1 + np.exp(-logit[0])) == pytest.approx(unseen.conditional[0], abs=0.03)
    assert std[0] < 0.3
    assert law.rises == pytest.approx([0.0, 0.3, 0.3], abs=1e-6)


def test_tokens_per_step_are_sums_of_runs() -> None:
    law = fit_law(SOURCE, PROBES)
    first, later = 0.4, 1 / (1 + np.exp(-(np.log(0.4 / 0.6) + 0.3)))
    found = law.tokens_per_step(np.array([np.log(0.4 / 0.6)]), (1, 3, 5))[:, 0]
    runs = np.cumprod([first, later, later, later, later])
    assert found == pytest.approx([1 + runs[:1].sum(), 1 + runs[:3].sum(), 1 + runs.sum()])
    half = law.tokens_per_step(np.array([np.log(0.4 / 0.6)]), (1,), 0.5)
    assert half[0, 0] == pytest.approx(1.2)


def test_more_probes_make_it_surer() -> None:
    wanted = shape_arrays([SOURCE.model_copy(update={"layers": 1})])
    stds = [fit_law(SOURCE, PROBES[:count]).logit(wanted, 1e6)[1][0] for count in (1, 3, 5)]
    assert stds[0] > stds[1] > stds[2]


def test_one_probe_is_enough_to_say_that_more_helps() -> None:
    law = fit_law(SOURCE, PROBES[:1])
    sizes = [SOURCE.model_copy(update={"layers": layers}) for layers in (1, 2, 8, 24)]
    logits, _ = law.logit(shape_arrays(sizes), 1e6)
    assert (np.diff(logits) > 0).all()


def test_a_position_that_hardly_anybody_looked_at_is_as_the_one_before() -> None:
    seen = [Probe(one.shape, one.tokens, (*one.conditional, 0.0), (100.0, 40.0, 10.0, 0.0)) for one in PROBES]
    assert fit_law(SOURCE, seen).rises == pytest.approx([0.0, 0.3, 0.3, 0.3], abs=1e-6)
    few = [Probe(one.shape, one.tokens, (*one.conditional[:2], 0.0), (100.0, 40.0, 1.0)) for one in PROBES]
    assert fit_law(SOURCE, few).rises == pytest.approx([0.0, 0.3, 0.3], abs=1e-6)


def test_without_probes_nothing_is_known() -> None:
    with pytest.raises(PredictionError, match="nothing is known of acceptance"):
        fit_law(SOURCE, [])
