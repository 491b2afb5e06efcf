"""In what order sequences of many domains come: known from a number, so that a run resumes from one, on any number of ranks.

The domain of the n-th follows from the weights, which of that domain's it is from how many came before; a domain is shuffled
anew each time it has been gone through."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_BLOCK = 1000  # sequences in which every domain has its exact share


class Order:
    """Of domains with so many sequences each, by weight."""

    def __init__(self, counts: Sequence[int], weights: Sequence[float], seed: int) -> None:
        self._counts, self._seed = tuple(counts), seed
        self._quota = quotas(weights)
        self._block = lru_cache(maxsize=4)(self._make_block)
        self._shuffled = lru_cache(maxsize=2 * len(counts))(self._make_shuffled)

    def place(self, n: int) -> tuple[int, int]:
        """The domain of the n-th, and its number there."""
        block, at = divmod(n, _BLOCK)
        domain_B, rank_B = self._block(block)
        which = int(domain_B[at])
        before = block * int(self._quota[which]) + int(rank_B[at])
        round_, rest = divmod(before, self._counts[which])
        return which, int(self._shuffled(which, round_)[rest])

    def _make_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        domain_B = np.repeat(np.arange(len(self._counts)), self._quota)
        np.random.default_rng([self._seed, block]).shuffle(domain_B)
        rank_B = np.zeros(_BLOCK, dtype=np.int64)
        for which, quota in enumerate(self._quota):
            rank_B[domain_B == which] = np.arange(quota)
        return domain_B, rank_B

    def _make_shuffled(self, which: int, round_: int) -> np.ndarray:
        return np.random.default_rng([self._seed, 1 + which, round_]).permutation(self._counts[which])


def quotas(weights: Sequence[float]) -> np.ndarray:
    """Whole numbers that add up to a block, as near to the weights as can be (largest remainders)."""
    exact = np.array(weights) / sum(weights) * _BLOCK
    quotas = np.floor(exact).astype(np.int64)
    missing = _BLOCK - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:missing]] += 1
    return quotas
