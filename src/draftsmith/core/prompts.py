"""A prompt, and the split it belongs to for good: train, probe or test by a hash of its text."""

import hashlib
from typing import Literal

from draftsmith.core.config import StrictConfig

Split = Literal["train", "probe", "test"]

# Of 1000: 700 train, 100 probe, 200 test. Changing this moves prompts between splits and so leaks: it is fixed.
_TRAIN, _PROBE = 700, 100


class Message(StrictConfig):
    """One turn of a chat, to be put through the target's chat template."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(StrictConfig):
    """What a data set yields: plain text, or a chat.

    `key` is the part that makes the prompt this one and no other (an MMLU question without its five examples), so that one
    question lies in one split however it is dressed."""

    dataset: str
    key: str
    text: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def split(self) -> Split:
        return split_of(self.key)


def split_of(text: str) -> Split:
    """The split of a text, the same on every machine and in every version."""
    normal = " ".join(text.split())
    bucket = int.from_bytes(hashlib.sha256(normal.encode()).digest()[:8], "big") % 1000
    if bucket < _TRAIN:
        return "train"
    return "probe" if bucket < _TRAIN + _PROBE else "test"
