"""An error names the problem and the way out, and says both when it is printed."""

import pickle

import pytest

from draftsmith.core import errors
from draftsmith.core.errors import DraftsmithError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DraftsmithError)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_what_is_wrong_and_what_to_do(kind: type[DraftsmithError]) -> None:
    error = kind("the lookahead -1 is negative", "give a positive one")
    assert (error.problem, error.way_out) == ("the lookahead -1 is negative", "give a positive one")
    assert str(error) == "the lookahead -1 is negative\n  What to do: give a positive one"


@pytest.mark.parametrize("kind", KINDS)
def test_one_except_catches_every_kind_and_kinds_do_not_nest(kind: type[DraftsmithError]) -> None:
    assert kind is DraftsmithError or kind.__bases__ == (DraftsmithError,)


@pytest.mark.parametrize("kind", KINDS)
def test_it_survives_the_way_from_a_worker_process(kind: type[DraftsmithError]) -> None:
    back = pickle.loads(pickle.dumps(kind("the model m is broken", "copy it again")))
    assert type(back) is kind
    assert (back.problem, back.way_out) == ("the model m is broken", "copy it again")
    assert str(back) == "the model m is broken\n  What to do: copy it again"
