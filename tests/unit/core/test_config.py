"""Strict settings: a typo is an error that says what was meant."""

import pickle
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from draftsmith.core.config import StrictConfig, parse_config, read_yaml
from draftsmith.core.errors import ConfigError
from tests.unit.builders import assert_explains


class Inner(StrictConfig):
    batch_size: int = 1


class Outer(StrictConfig):
    target: str
    lookahead: int = 3
    inner: Inner = Inner()


def test_values_become_settings_and_stay_as_they_are() -> None:
    config = parse_config(Outer, {"target": "t", "inner": {"batch_size": 4}}, "the settings")
    assert config == Outer(target="t", lookahead=3, inner=Inner(batch_size=4))
    with pytest.raises(ValidationError, match="frozen"):
        config.lookahead = 4


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"target": "t", "lokahead": 2}, "there is no setting 'lokahead', did you mean 'lookahead'?"),
        ({"target": "t", "colour": 2}, "there is no setting 'colour'"),
        ({"target": "t", "lookahead": "many"}, "lookahead should be a valid integer"),
        ({"target": "t", "lookahead": "many"}, "(got 'many')"),
        ({"target": "t", "inner": {"batch_size": "all"}}, "inner.batch_size should be"),
        ({}, "target is missing"),
        ({"colour": 2, "lookahead": "many"}, "; there is no setting 'colour'"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(Outer, values, "run.yaml")
    assert_explains(caught.value, "run.yaml cannot be used: ", problem, way_out="target, lookahead, inner")


def test_what_is_wrong_only_because_of_a_part_is_not_said() -> None:
    class Several(StrictConfig):
        sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)

    with pytest.raises(ConfigError) as caught:
        parse_config(Several, {"sizes": (0,)}, "run.yaml")
    assert caught.value.settings == (("sizes.0", "should be greater than or equal to 1 (got 0)"),)


def test_what_is_wrong_crosses_a_process_border_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(Outer, {"colour": 2}, "run.yaml", "record")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.verb, again.settings) == ("record", (("target", "is missing"), ("", "there is no setting 'colour'")))
    assert str(again) == str(caught.value)
    assert str(again).startswith("run.yaml cannot be used: target is missing; there is no setting 'colour'\n")


def test_an_unlike_name_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(Outer, {"target": "t", "colour": 2}, "run.yaml")
    assert "did you mean" not in caught.value.problem


@pytest.mark.parametrize("typo", ["batchsize", "x"])
def test_a_nested_typo_is_compared_with_the_nested_settings(typo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(Outer, {"target": "t", "inner": {typo: 2}}, "run.yaml")
    assert f"there is no setting 'inner.{typo}'" in caught.value.problem
    assert ("did you mean 'batch_size'?" in caught.value.problem) == (typo == "batchsize")
    assert "'inner'?" not in caught.value.problem


def test_a_missing_nested_setting_is_named_in_full() -> None:
    class Wrapper(StrictConfig):
        outer: Outer

    with pytest.raises(ConfigError, match=r"outer\.target is missing"):
        parse_config(Wrapper, {"outer": {}}, "run.yaml")


def test_yaml_is_read_as_plain_values(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("target: t\ninner:\n  batch_size: 4\n")
    assert read_yaml(file) == {"target": "t", "inner": {"batch_size": 4}}
    file.write_text("# nothing yet\n")
    assert read_yaml(file) == {}


def test_yaml_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(tmp_path / "run.yaml")
    assert_explains(caught.value, "there is no configuration file", tmp_path / "run.yaml", way_out="check the path")


@pytest.mark.parametrize(
    ("text", "problem", "way_out"),
    [
        ("target: [t", "is not valid YAML", "correct the file"),
        ("- target\n", "holds a list, not settings", "`name: value`"),
        ("target\n", "holds a str, not settings", "`name: value`"),
    ],
)
def test_yaml_that_holds_no_settings(tmp_path: Path, text: str, problem: str, way_out: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert_explains(caught.value, file, problem, way_out=way_out)


def test_yaml_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert_explains(caught.value, file, "is not valid YAML", way_out="correct the file")
