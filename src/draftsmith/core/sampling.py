"""How tokens are chosen. A trace belongs to exactly one of these settings."""

from typing import Literal

from pydantic import Field

from draftsmith.core.config import StrictConfig

DraftMethod = Literal["greedy", "probabilistic"]


class Sampling(StrictConfig):
    """The target's sampling: temperature 0 is greedy; top_k 0 and top_p 1 switch those filters off."""

    temperature: float = Field(0.0, ge=0.0)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    seed: int = Field(0, ge=0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0
