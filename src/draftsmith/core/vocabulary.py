"""Do two models mean the same strings by the same ids? Sizes do not answer that: two vocabularies of one size can differ."""

import hashlib
import json

from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import VocabularyError

_SHOWN = 5


class Vocabulary(StrictConfig):
    """Token strings by id, and how many rows the model's output has (engines pad them to round numbers)."""

    model: str
    tokens: dict[int, str]
    rows: int

    @property
    def fingerprint(self) -> str:
        text = json.dumps(sorted(self.tokens.items()), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_same_tokens(target: Vocabulary, draft: Vocabulary) -> None:
    """Refuse a draft whose tokens are not the target's. Different padding of the same tokens is fine."""
    ids = sorted(target.tokens.keys() | draft.tokens.keys())
    differing = [(i, target.tokens.get(i), draft.tokens.get(i)) for i in ids if target.tokens.get(i) != draft.tokens.get(i)]
    if differing:
        shown = ", ".join(f"{i}: {a!r} against {b!r}" for i, a, b in differing[:_SHOWN])
        raise VocabularyError(
            f"{target.model} and {draft.model} disagree on {len(differing)} of {len(ids)} tokens ({shown})",
            "use a draft with the target's tokenizer; a draft pruned from the target or from its sibling has it",
        )
    for one in (target, draft):
        if one.tokens and max(one.tokens) >= one.rows:
            raise VocabularyError(
                f"{one.model} has tokens up to id {max(one.tokens)} but only {one.rows} output rows",
                "its tokenizer and weights do not belong together: save them again",
            )
