"""Gates: chances and draws agree, prices lead to the shape, and the plan is exact whatever the gates say."""

import math
from collections.abc import Callable

import pytest

from draftsmith.core import registry
from draftsmith.core.families import check_shape
from tests.unit.builders import shape

torch = pytest.importorskip("torch")

SOURCE = shape(layers=4, heads=4, kv_heads=2, head_size=8, hidden=32, intermediate=24)


def gates(seed: int = 0, **wanted: int) -> "Gates":  # type: ignore[name-defined] # noqa: F821
    from draftsmith.training.hard_concrete import Gates

    return Gates(SOURCE, SOURCE.model_copy(update=wanted), seed)


def test_the_chance_of_a_gate_to_be_open_is_how_often_it_is() -> None:
    from draftsmith.training.hard_concrete import chance_open, gate

    generator = torch.Generator().manual_seed(0)
    for alpha in (-3.0, -0.5, 0.0, 2.0):
        draws = gate(torch.tensor(alpha), torch.rand(100_000, generator=generator))
        assert float((draws > 0).float().mean()) == pytest.approx(float(chance_open(torch.tensor(alpha))), abs=0.005)
        assert 0.0 <= float(draws.min()) <= float(draws.max()) <= 1.0


def test_only_what_becomes_smaller_has_gates() -> None:
    assert list(gates(layers=2).log_alphas) == ["layers"]
    assert list(gates(heads=2, kv_heads=1, hidden=16, intermediate=8).log_alphas) == ["hidden", "kv_heads", "neurons"]
    masks = gates(layers=2).masks(gates(layers=2).noise(0, 1))
    assert torch.equal(masks.hidden_D, torch.ones(32))
    assert masks.layers_L.shape == (4,)


@pytest.mark.parametrize(
    "wanted",
    [
        {"layers": 1},
        {"heads": 2},
        {"heads": 2, "kv_heads": 1},
        {"hidden": 12, "intermediate": 5},
        {"layers": 3, "heads": 1, "kv_heads": 1, "hidden": 8, "intermediate": 1},
    ],
    ids=str,
)
def test_the_plan_has_exactly_the_shape(wanted: dict[str, int]) -> None:
    for seed in range(3):
        made = gates(seed, **wanted)
        with torch.no_grad():
            for alpha in made.log_alphas.values():
                alpha.normal_(generator=torch.Generator().manual_seed(seed))
        plan = made.plan()
        plan.check(SOURCE)
        assert plan.shape(SOURCE) == made.wanted
    check_shape(registry.load("families", "llama"), SOURCE, made.wanted)


def learn(made: "Gates", steps: int, loss: Callable[[int], "torch.Tensor"]) -> None:  # type: ignore[name-defined] # noqa: F821
    optimizer = torch.optim.AdamW(
        [
            {"params": list(made.log_alphas.values()), "lr": 0.1},
            {"params": list(made.prices.values()), "lr": 0.1, "maximize": True},
        ],
        weight_decay=0.0,
    )
    for step in range(steps):
        optimizer.zero_grad()
        (loss(step) + made.price(min(1.0, 3 * step / steps))).backward()
        optimizer.step()
        made.stay_within()


def test_prices_lead_the_gates_to_the_shape() -> None:
    """Prices close gates, and the loss, to which every one is worth a little, opens what was closed beyond the shape."""
    made = gates(layers=2, heads=2, kv_heads=1, hidden=16, intermediate=6)

    def loss(step: int) -> torch.Tensor:
        masks = made.masks(made.noise(0, step))
        return -1e-2 * sum(one.sum() for one in (masks.layers_L, masks.heads_LH, masks.hidden_D, masks.neurons_LN))

    assert made.worst() > 0.4
    learn(made, 300, loss)
    assert made.worst() < 0.05


def test_within_layers_that_go_the_shape_does_not_count() -> None:
    made, far = gates(layers=2, intermediate=8), math.log(100.0)
    with torch.no_grad():
        made.log_alphas["layers"].copy_(torch.tensor([far, -far, far, -far]))
        neurons = made.log_alphas["neurons"].fill_(-far)
        neurons[:, :8] = far
        neurons[1] = far
    assert (made.worst(), made.too_many()) == pytest.approx((0.0, 0.0), abs=1e-5)
    with torch.no_grad():
        neurons[2] = far
    assert (made.worst(), made.too_many()) == pytest.approx((16 / 24, 16 / 24))


def test_gates_stay_where_a_price_can_move_them() -> None:
    """However long the loss holds some open, or a price others closed."""
    made = gates(layers=2)

    def loss(step: int) -> torch.Tensor:
        return -made.masks(made.noise(0, step)).layers_L[:2].sum()

    learn(made, 200, loss)
    reached = made.log_alphas["layers"].detach()
    assert reached.tolist() == pytest.approx([math.log(100)] * 2 + [-math.log(100)] * 2, abs=0.1)


def test_gates_that_nothing_needs_are_the_ones_that_close() -> None:
    """A third of the neurons do nothing; of the rest, a closed gate costs little and says so through noise."""
    made = gates(intermediate=16)
    idle = [sorted(torch.randperm(24, generator=torch.Generator().manual_seed(layer))[:8].tolist()) for layer in range(4)]
    worth = torch.full((4, 24), 1e-3)
    for layer, places in enumerate(idle):
        worth[layer, places] = 0.0
    generator = torch.Generator().manual_seed(0)

    def loss(step: int) -> torch.Tensor:
        closed = 1 - made.masks(made.noise(0, step)).neurons_LN
        return (worth * (closed**2 + 2 * torch.randn(worth.shape, generator=generator) * closed)).sum()

    learn(made, 300, loss)
    assert [sorted(set(range(24)) - set(layer.neurons)) for layer in made.plan().layers] == idle


def test_a_masked_draw_lets_gradients_through() -> None:
    made = gates(hidden=16, heads=2, kv_heads=1)
    masks = made.masks(made.noise(0, 3))
    (masks.hidden_D.sum() + masks.heads_LH.sum()).backward()
    assert all(float(alpha.grad.abs().sum()) > 0 for alpha in made.log_alphas.values())
    assert torch.equal(made.masks(made.noise(0, 3)).hidden_D, masks.hidden_D)


def test_every_seed_and_every_step_has_draws_of_its_own() -> None:
    made = gates(hidden=16)
    draws = [made.noise(seed, step)["hidden"] for seed in (0, 1) for step in (0, 1)]
    assert len({tuple(one.tolist()) for one in draws}) == 4


def test_nothing_to_mask_is_refused() -> None:
    from draftsmith.core.errors import PlanError

    with pytest.raises(PlanError, match="there is nothing to mask"):
        gates()
