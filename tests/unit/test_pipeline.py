"""The flow in code: every stage is a verb, and reads only what is given or what a stage before it wrote."""

import pytest
from typer.testing import CliRunner

from draftsmith.cli import app
from draftsmith.pipeline import STAGES, Stage

GIVEN = {"target", "draft", "draft or shape", "shapes", "source", "prompts", "text"}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.verb)
def test_every_stage_is_a_verb(stage: Stage) -> None:
    verb, *option = stage.verb.split()
    told = CliRunner().invoke(app, [verb, "--help"])
    assert told.exit_code == 0
    assert all(one in told.output for one in option)


def test_a_stage_reads_what_is_given_or_was_written_before() -> None:
    there = set(GIVEN)
    for stage in STAGES:
        assert set(stage.reads) <= there, stage.verb
        there.add(stage.writes)


def test_no_two_stages_write_the_same_record() -> None:
    assert len({stage.writes for stage in STAGES}) == len({stage.verb for stage in STAGES}) == len(STAGES)


def test_the_help_tells_the_flow_in_its_order() -> None:
    told = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    places = [told.index(f"{stage.verb}, {stage.summary}") for stage in STAGES]
    assert places == sorted(places)
