"""The Python face: settings by name, records with the folder they lie in."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith import api
from draftsmith.core.errors import ConfigError
from draftsmith.core.protocols import ModelDraft, NgramDraft
from draftsmith.core.records import Profile
from draftsmith.core.store import read_record
from draftsmith.core.trace import Trace
from tests.unit.builders import LLAMA, FakeEngine, assert_explains, write_model

ENGINE = {"kind": "fake"}
RECORD = {"datasets": ["fake"], "num_prompts": 4, "max_new_tokens": 6, "shard_size": 2, "engine": ENGINE}


@pytest.fixture
def models(tmp_path: Path, engine: FakeEngine) -> tuple[Path, Path]:
    return write_model(tmp_path / "target", 1.0), write_model(tmp_path / "draft")


def record(target: Path | str, store: Path | None, **changes: Any) -> api.Kept[Trace]:
    return api.record(target=target, store=store, **RECORD | changes)


def test_the_verbs_in_their_order(tmp_path: Path, models: tuple[Path, Path]) -> None:
    target, draft = models
    trace = record(target, tmp_path)
    assert trace.record.num_tokens == 24
    assert read_record(Trace, trace.folder) == trace.record

    card = api.evaluate(trace=trace.folder, draft=draft, lookaheads=(1, 2), engine=ENGINE, store=tmp_path)
    assert card.record.trace == trace.record.fingerprint
    assert card.record.overall.at(2).tokens_per_step == 3  # a draft that is always right

    live = api.evaluate_live(
        trace=trace.folder,
        target=target,
        draft=draft,
        lookaheads=(0, 2),
        engine=ENGINE | {"batch_size": 2},
        store=tmp_path,
    )
    assert [cell.tokens_per_step for cell in live.record.cells] == [1, 3]

    pictures = api.picture(card, (live,))
    assert {path.suffix for path in pictures} == {".png", ".svg", ".html"}
    assert {path.parent for path in pictures} == {card.folder}


@pytest.mark.parametrize(
    ("named", "draft"),
    [
        ("ngram", NgramDraft()),
        (Path("ngram"), NgramDraft()),
        ({"kind": "ngram", "max_ngram": 4}, NgramDraft(max_ngram=4)),
        ("DRAFT", ModelDraft(path="DRAFT")),
        (Path("DRAFT"), ModelDraft(path="DRAFT")),
        ({"kind": "model", "path": "DRAFT", "method": "probabilistic"}, ModelDraft(path="DRAFT", method="probabilistic")),
        pytest.param(
            {"path": "DRAFT", "method": "probabilistic"},
            ModelDraft(path="DRAFT", method="probabilistic"),
        ),
        pytest.param(
            {"kind": "model", "path": Path("DRAFT")},
            ModelDraft(path="DRAFT"),
        ),
    ],
)
def test_a_draft_may_be_named_by_one_word(
    tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, named: Any, draft: Any
) -> None:
    trace = record(models[0], tmp_path)
    monkeypatch.chdir(write_model(tmp_path / "DRAFT").parent)
    card = api.evaluate(trace=str(trace.folder), draft=named, engine=ENGINE, store=tmp_path)
    assert card.record.draft == draft


def test_paths_and_text_name_the_same(tmp_path: Path, models: tuple[Path, Path]) -> None:
    target, draft = models
    trace = record(target, tmp_path, data=tmp_path)
    assert record(str(target), tmp_path, data=str(tmp_path)) == trace
    card = api.evaluate(trace=trace.folder, draft=draft, engine=ENGINE, store=tmp_path)
    assert api.evaluate(trace=str(trace.folder), draft=str(draft), engine=ENGINE, store=tmp_path) == card
    live = api.evaluate_live(trace=trace.folder, target=target, draft=draft, engine=ENGINE, store=tmp_path)
    texts = {"trace": str(trace.folder), "target": str(target), "draft": str(draft)}
    assert api.evaluate_live(**texts, engine=ENGINE, store=tmp_path) == live


def test_records_go_where_the_environment_says(
    tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert record(models[0], None).folder.parent == Path("runs/traces")
    monkeypatch.setenv("DRAFTSMITH_STORE", str(tmp_path / "kept"))
    assert record(models[0], None).folder.parent == tmp_path / "kept" / "traces"
    assert record(models[0], tmp_path / "given").folder.parent == tmp_path / "given" / "traces"


@pytest.mark.parametrize(
    ("verb", "settings", "where", "problem"),
    [
        (api.record, {"target": "t", "datasets": ["fake"], "max_new_token": 3}, "record", "did you mean 'max_new_tokens'?"),
        (api.record, {"target": "t", "datasets": []}, "record", "datasets should have"),
        (api.evaluate, {"trace": "t", "draft": "d", "lookahead": 3}, "evaluate", "did you mean 'lookaheads'?"),
        (api.evaluate_live, {"trace": "t", "draft": "d"}, "evaluate --live", "target is missing"),
        (api.profile, {"target": "t", "batch": 3}, "profile", "did you mean 'batches'?"),
        (api.profile_shapes, {}, "profile --shapes", "shapes is missing"),
        (api.predict, {"acceptanc": 0.5}, "predict", "did you mean 'acceptance'?"),
    ],
)
def test_settings_are_checked_first(verb: Any, settings: dict[str, Any], where: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        verb(**settings)
    assert_explains(caught.value, f"the settings of {where} cannot be used", problem, way_out="the settings are")


@pytest.mark.usefixtures("quiet")
def test_measure_and_predict(tmp_path: Path, engine: FakeEngine) -> None:
    config = json.dumps(LLAMA)
    target, draft = write_model(tmp_path / "target", 1.0, config), write_model(tmp_path / "draft", config=config)
    small = {"batches": (1,), "contexts": (64,), "timing": {"steps": 1, "max_rounds": 2}, "engine": ENGINE, "store": tmp_path}
    profile = api.profile(target=target, draft=draft, lookaheads=(1, 2), **small)
    assert read_record(Profile, profile.folder) == profile.record
    assert api.profile(target=str(target), draft=str(draft), lookaheads=(1, 2), **small) == profile
    assert api.profile(target=target, draft="ngram", **small).record.draft == "ngram"
    assert api.profile(target=target, **small).record.draft is None

    trace = record(target, tmp_path)
    card = api.evaluate(trace=trace.folder, draft=draft, lookaheads=(1, 2), engine=ENGINE, store=tmp_path)
    asked = {"profile": profile.folder, "scorecard": card.folder, "store": tmp_path}
    prediction = api.predict(**asked)
    assert prediction.record.points[-1].tokens_per_step == 3
    assert api.predict(**asked, trace=trace.folder).record.replayed_batches
    names = [path.name for path in api.predict_pictures(prediction)]
    assert names[0] == "prediction.html"
    assert {"throughput.png", "throughput.svg", "step_split.png", "break_even.svg"} <= set(names)


@pytest.mark.usefixtures("quiet")
def test_shapes_and_their_picture(tmp_path: Path, engine: FakeEngine) -> None:
    groups = {"depth": [{"num_hidden_layers": layers} for layers in (1, 2, 4)]}
    (tmp_path / "shapes.yaml").write_text(json.dumps({"architecture": LLAMA, "groups": groups}))
    kept = api.profile_shapes(
        shapes=tmp_path / "shapes.yaml", timing={"steps": 1, "max_rounds": 2}, engine=ENGINE, store=tmp_path
    )
    assert [cell.shape.layers for cell in kept.record.cells] == [1, 2, 4]
    assert {path.name for path in api.shape_picture(kept)} == {"shapes.png", "shapes.svg", "shapes.html"}


def test_the_doctor_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "diagnose", lambda: "healthy")
    assert api.doctor() == "healthy"


class TestWorkers:
    def part(self, worker: tuple[int, int], target: Path, store: Path) -> Path:
        return api.record_part(worker, target=target, store=store, **RECORD)

    def test_each_does_its_part_and_the_last_one_finishes(self, tmp_path: Path, models: tuple[Path, Path]) -> None:
        folder = self.part((0, 2), models[0], tmp_path)
        assert [path.name for path in sorted(folder.glob("shard*"))] == ["shard-00000.parquet"]
        assert not (folder / "record.json").exists()
        assert self.part((1, 2), models[0], tmp_path) == folder
        assert read_record(Trace, folder).num_prompts == 4

    def test_the_parts_together_are_what_one_would_have_made(
        self, tmp_path: Path, models: tuple[Path, Path], engine: FakeEngine
    ) -> None:
        folders = {self.part((index, 2), models[0], tmp_path) for index in range(2)}
        calls = engine.calls.copy()
        kept = record(models[0], tmp_path)
        assert {kept.folder} == folders
        assert engine.calls == calls  # there was nothing left to do

    def test_a_recording_alone_takes_up_what_is_missing(self, tmp_path: Path, models: tuple[Path, Path]) -> None:
        folder = self.part((0, 2), models[0], tmp_path)
        kept = record(models[0], tmp_path)
        assert (kept.folder, kept.record.num_prompts) == (folder, 4)

    @pytest.mark.parametrize("worker", [(0, 0), (2, 2), (-1, 2)])
    def test_one_that_cannot_be(self, tmp_path: Path, models: tuple[Path, Path], worker: tuple[int, int]) -> None:
        with pytest.raises(ConfigError, match=f"no worker {worker[0]} of {worker[1]}"):
            self.part(worker, models[0], tmp_path)
