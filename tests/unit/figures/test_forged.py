"""The picture of what was forged: a bar a contender, and the one that was kept stands out."""

from draftsmith.core.records import Contender, Forged
from draftsmith.figures.forged import forged, page_sections
from draftsmith.figures.save import svg
from tests.unit.builders import shape


def contender(name: str, speedup: float, layers: int | None = 2) -> Contender:
    return Contender(
        name=name, fingerprint=None, parameters=None if layers is None else 2_500_000, layers=layers, lookahead=3,
        tokens_per_step=2.0, tokens_per_second=100 * speedup, plain_tokens_per_second=100.0, speedup=speedup,
        differing_outputs=0,
    )  # fmt: skip


MADE = Forged(
    target="big", source="big", engine="vllm", batch=4, best="forged", speedup=1.8, lookahead=3, shape=shape(),
    tokens=2_000_000, contenders=(contender("forged", 1.8), contender("prompt lookup", 1.2, None)), shapes_trained=7,
    seconds=7200.0, fingerprint="f",
)  # fmt: skip


def test_the_fastest_first_against_plain_decoding() -> None:
    bars, plain = forged(MADE).to_dict()["layer"]
    assert [(one["name"], one["ours"]) for one in bars["data"]["values"]] == [("forged", True), ("prompt lookup", False)]
    assert plain["data"]["values"] == [{"speedup": 1.0}]
    assert "1.80 x plain decoding of big" in svg(forged(MADE), dark=False)


def test_the_page_says_what_it_is_and_what_it_beat() -> None:
    before, everyone = page_sections(MADE)
    assert "trained on 2.00M tokens" in before.text
    assert "in 2.0 hours" in before.text
    assert [row[0] for row in everyone.rows] == ["forged", "prompt lookup"]
    assert everyone.rows[1][1:3] == ("", "")
