"""One voice per job: rank 0 speaks, the others only warn, and sign what they say."""

import pytest

from draftsmith.core.log import log, rank, setup_logging


def say_everything() -> None:
    log.debug("a detail")
    log.info("a message")
    log.warning("a warning")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, 0), ({"RANK": "3"}, 3), ({"SLURM_PROCID": "2"}, 2), ({"RANK": "1", "SLURM_PROCID": "2"}, 1)],
)
def test_the_rank_is_the_jobs(environment: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank() == expected


@pytest.mark.parametrize(
    ("its_rank", "verbose", "said"),
    [
        ("0", False, ["a message", "a warning"]),
        ("0", True, ["a detail", "a message", "a warning"]),
        ("3", False, ["[rank 3] a warning"]),
        ("3", True, ["[rank 3] a warning"]),
    ],
)
def test_who_says_what(
    its_rank: str, verbose: bool, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", its_rank)
    setup_logging(verbose)
    say_everything()
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == len(said)
    for line, expected in zip(lines, said, strict=True):
        assert line.rstrip().endswith(expected)
    assert ("rank" in err) == (its_rank != "0")


def test_setting_up_twice_does_not_say_things_twice(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    setup_logging()
    log.info("a message")
    assert capsys.readouterr().err.count("a message") == 1


def test_the_library_alone_prints_nothing_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("a message")
    assert capsys.readouterr() == ("", "")
