"""Forging: what was decided stays decided, the time is kept to, and the shapes that are timed can be had."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftsmith.core.errors import ConfigError
from draftsmith.core.shapes import shape_of
from draftsmith.core.store import write_json
from draftsmith.forge.contest import check_names
from draftsmith.forge.decisions import Decisions
from draftsmith.forge.ground import ForgeConfig, check_order, fitted_to, recordings, shapes_to_time
from draftsmith.forge.rounds import Rounds, cut_by, pruners_by, sizes_of
from draftsmith.theory.search import deep_equal, half_as_wide
from tests.unit.builders import shape

BIG = {
    "model_type": "llama", "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size": 2048,
    "intermediate_size": 5632, "vocab_size": 32000, "head_dim": 64, "pad_token_id": 31999,
}  # fmt: skip


@pytest.mark.parametrize(("loss", "kept"), [("forward_kl", 16), ("cross_entropy", 0)])
def test_likely_tokens_are_only_kept_for_a_loss_that_reads_them(loss: str, kept: int) -> None:
    train, *others = recordings(ForgeConfig(target="t", datasets=("jsonl",), loss=loss))
    assert train.top_logprobs == kept
    assert not any(one.top_logprobs for one in others)


class TestTime:
    """Four shapes have a quarter of it, two another, and the last and its equal the rest; 15% are for live runs."""

    def rounds(self, tmp_path: Path, spent: float, trained: int, **more: Any) -> Rounds:
        config = ForgeConfig(target="t", datasets=("jsonl",), hours=1.0, **more)
        Decisions(tmp_path).decide("seconds: all so far", lambda: spent)
        ground = SimpleNamespace(config=config, decisions=Decisions(tmp_path))
        return Rounds(ground, [None] * trained)  # type: ignore[arg-type, list-item]

    @pytest.mark.parametrize(
        ("trained", "round_", "share"), [(1, 0, 0.0625 / 0.9375), (4, 1, 0.125 / 0.75), (5, 1, 0.125 / 0.625), (6, 2, 0.5)]
    )
    def test_every_shape_has_its_share_of_what_is_left(self, tmp_path: Path, trained: int, round_: int, share: float) -> None:
        left = 3600 * 0.85 - 1000
        assert self.rounds(tmp_path, 1000, trained).seconds_of_the_next(round_) == pytest.approx(share * left)

    def test_the_last_has_all_that_is_left_if_nothing_comes_after_it(self, tmp_path: Path) -> None:
        last = self.rounds(tmp_path, 60, 2, shapes_tried=(2, 0), deep_thin=False)
        assert last.seconds_of_the_next(2) == pytest.approx(3600 * 0.85 - 60)

    def test_nothing_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        late = self.rounds(tmp_path, 4000, 3)
        assert late.seconds_of_the_next(0) == 0
        write_json(tmp_path / "config.json", BIG)
        late.ground.source = tmp_path  # type: ignore[misc]
        monkeypatch.setattr(Rounds, "_flops_of_the_next", lambda *_: 0.0)
        with caplog.at_level("WARNING"):
            assert late._steps({"layers": 2}, 1) == 4
        assert "there is time for 4 steps of training only: 67 of 60 minutes are gone" in caplog.text

    @pytest.mark.parametrize(("flops", "steps"), [(1000.0, 769), (130.0, 70), (60.0, 4)])
    def test_the_last_pays_for_the_search_of_its_rate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flops: float, steps: int
    ) -> None:
        """Three rates, each for a tenth of its steps, or for 20 where that is more."""
        last = self.rounds(tmp_path, 100, 6)
        write_json(tmp_path / "config.json", BIG)
        last.ground.source = tmp_path  # type: ignore[misc]
        monkeypatch.setattr(Rounds, "_flops_of_the_next", lambda *_: flops * last.ground.config.step_tokens)
        monkeypatch.setattr("draftsmith.forge.rounds._flops", lambda _: 1.0)
        assert last._steps({"layers": 2}, 2) == steps
        assert last._steps({"layers": 2}, 0) == flops


@pytest.mark.parametrize(("most", "depths"), [(None, [3, 7]), (5, [2, 5])])
def test_the_first_shapes_are_of_two_depths_that_may_be_had(tmp_path: Path, most: int | None, depths: list[int]) -> None:
    write_json(tmp_path / "config.json", BIG)
    config = ForgeConfig(target="t", datasets=("jsonl",), most_layers=most)
    rounds = Rounds(SimpleNamespace(config=config, source=tmp_path))  # type: ignore[arg-type]
    first = [rounds._first_shape(place) for place in range(3)]
    assert [one["layers"] for one in first] == [*depths, depths[0]]
    assert [one["hidden"] for one in first] == [2048, 2048, 1024]


def test_an_order_of_layers_must_lead_to_any_depth(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", BIG)
    given: dict[str, Any] = {"target": "t", "datasets": ("jsonl",)}
    check_order(tmp_path, ForgeConfig(**given))
    check_order(tmp_path, ForgeConfig(**given, layer_order=tuple(range(21))))
    for wrong in ((1, 2, 3), (*range(20), 22)):
        with pytest.raises(ConfigError, match="name 21 different ones of 0 to 21"):
            check_order(tmp_path, ForgeConfig(**given, layer_order=wrong))


def test_a_known_order_is_what_depth_goes_by() -> None:
    assert [one.kind for one in pruners_by((2, 1), {"layers": 2})] == ["depth"]
    assert [one.kind for one in pruners_by((2, 1), {"hidden": 64})] == ["width"]
    depth, width = pruners_by((2, 1), {"layers": 2, "heads": 4})
    assert (depth.settings, width.kind) == ({"order": [2, 1]}, "width")
    assert pruners_by(None, {"layers": 2})[0].settings == {}


def test_the_head_is_fitted_to_what_was_cut() -> None:
    own, tied = shape_of(BIG, "big"), shape_of({**BIG, "tie_word_embeddings": True}, "big")
    assert [one.kind for one in cut_by(None, {"layers": 2, "heads": 4}, own)] == ["depth", "width", "refit"]
    assert [one.kind for one in cut_by(None, {"layers": 2, "heads": 32}, tied)] == ["depth"]
    assert cut_by(None, sizes_of(own), own) == ()


class TestDecisions:
    def test_what_was_decided_stays_decided(self, tmp_path: Path) -> None:
        assert Decisions(tmp_path).decide("a", lambda: [1, 2]) == [1, 2]
        assert Decisions(tmp_path).decide("a", lambda: [3]) == [1, 2]

    def test_a_decision_may_lead_to_others(self, tmp_path: Path) -> None:
        kept = Decisions(tmp_path)

        def make() -> int:
            kept.decide("inner", lambda: 1)
            return 2

        assert kept.decide("outer", make) == 2
        assert (kept.decide("inner", lambda: 9), kept.decide("outer", lambda: 9)) == (1, 2)

    def test_time_is_that_of_the_first_time(self, tmp_path: Path) -> None:
        seen: list[int] = []

        def work() -> Path:
            seen.append(1)
            return tmp_path

        for _ in range(2):
            assert Decisions(tmp_path).timed("train it", work) == tmp_path
        assert len(seen) == 2, "a stage that was done finds that out itself"
        assert 0 < Decisions(tmp_path).seconds() < 1


class TestShapesToTime:
    def test_they_differ_in_every_size_and_can_be_loaded(self) -> None:
        made = shapes_to_time(BIG, shape_of(BIG, "it"))
        shapes = [shape_of(one, "one of them") for one in made["groups"]["around"]]
        assert len(shapes) >= 10
        for size in ("layers", "heads", "kv_heads", "hidden", "intermediate", "vocabulary"):
            assert len({getattr(one, size) for one in shapes}) > 1, size
        assert all(one.hidden % one.heads == 0 and one.heads % one.kv_heads == 0 for one in shapes)
        assert all(one["pad_token_id"] is None for one in made["groups"]["around"]), "it may lie beyond a smaller vocabulary"

    def test_what_ranks_cannot_share_is_left_out(self) -> None:
        made = shapes_to_time(BIG, shape_of(BIG, "it"), ranks=4)
        assert all(one["num_attention_heads"] % 4 == 0 for one in made["groups"]["around"])

    def test_a_family_has_its_rules(self) -> None:
        qwen = {**BIG, "model_type": "qwen2"}
        for one in shapes_to_time(qwen, shape_of(qwen, "it"))["groups"]["around"]:
            assert one["hidden_size"] == one["num_attention_heads"] * 64


class TestDeepEqual:
    @pytest.mark.parametrize("layers", [1, 2, 4])
    def test_four_times_as_deep_and_as_many_parameters(self, layers: int) -> None:
        source = shape_of(BIG, "it")
        shallow = source.model_copy(update={"layers": layers})
        deep = deep_equal(source, "multiple of heads", shallow)
        assert deep is not None
        assert deep.layers >= 4 * layers
        assert deep.parameters == pytest.approx(shallow.parameters, rel=0.03)
        assert deep.hidden % deep.heads == 0

    def test_there_may_be_none(self) -> None:
        assert deep_equal(shape(layers=4), "any", shape(layers=2)) is None


@pytest.mark.parametrize(("rule", "ranks"), [("any", 1), ("multiple of heads", 2), ("heads x head size", 1)])
def test_half_as_wide(rule: Any, ranks: int) -> None:
    half = half_as_wide(shape_of(BIG, "it"), rule, 3, ranks)
    assert (half.layers, half.heads, half.kv_heads, half.hidden, half.intermediate) == (3, 16, 2, 1024, 2816)
    assert half.vocabulary == 32000


def test_half_of_nine_heads_is_what_can_be_cut() -> None:
    source = shape_of({**BIG, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}, "it")
    half = half_as_wide(source, "multiple of heads", 3)
    assert half.hidden % half.heads == 0
    assert half.heads % half.kv_heads == 0
    assert 192 <= half.hidden <= 384


def test_a_draft_may_not_have_the_name_of_another_contender() -> None:
    given: dict[str, Any] = {"target": "t", "datasets": ("jsonl",)}
    check_names(ForgeConfig(**given, drafts=("a/model", "b/model")))
    for drafts in (("a/model", "a/model"), ("forged",)):
        with pytest.raises(ConfigError, match="has the name of another contender"):
            check_names(ForgeConfig(**given, drafts=drafts))


def test_a_source_learns_from_sequences_that_it_has_positions_for(tmp_path: Path) -> None:
    given: dict[str, Any] = {"target": "t", "datasets": ("jsonl",)}
    for positions, length in ((256, 256), (2048, None)):
        write_json(tmp_path / "config.json", {"max_position_embeddings": positions})
        assert fitted_to(tmp_path, ForgeConfig(**given)).learning.get("length") == length
    assert fitted_to(tmp_path, ForgeConfig(**given, learning={"length": 1024})).learning == {"length": 1024}
    write_json(tmp_path / "config.json", {"max_position_embeddings": 512})
    assert fitted_to(tmp_path, ForgeConfig(**given, learning={"length": 1024})).learning == {"length": 512}
    write_json(tmp_path / "config.json", {"max_position_embeddings": 2048})
    with pytest.raises(ConfigError, match="has 2048 positions, and is to be timed at context 4096"):
        fitted_to(tmp_path, ForgeConfig(**given, context=4096))


def test_the_batch_that_serves_most_is_run_live() -> None:
    given: dict[str, Any] = {"target": "t", "datasets": ("jsonl",)}
    assert ForgeConfig(**given, batches={1: 0.2, 8: 0.7, 4: 0.1}).batch == 8
    assert ForgeConfig(**given).step_tokens == 16 * 512
    assert ForgeConfig(**given, engine={"kind": "vllm", "tensor_parallel": 2}).scoring.kind == "transformers"
