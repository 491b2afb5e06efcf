"""What a better draft would gain, token by token: how many steps fewer a whole output takes for each bit of acceptance chance.

Reads the chances a_j that a draft's proposals are accepted; writes -dS/da_j, S the expected steps of the output at lookahead k.
A step that stands at position j with r proposals left has U_r(j) further steps before it, and looks at j as its m-th proposal
with chance R_m(j):

    U_0(j) = S(j+1)      U_r(j) = (1 - a_j) S(j+1) + a_j U_{r-1}(j+1)      S(j) = 1 + U_k(j)
    R_{m+1}(j+1) = a_j R_m(j)      R_0(j+1) = sum over m < k of (1 - a_j) R_m(j), and R_k(j)

The gain at j is that of being accepted there instead of rejected: sum over m < k of R_m(j) (S(j+1) - U_{k-m-1}(j+1)).
Arrays: J positions, N outputs, K = k + 1 places in a step; outputs end together, at J."""

from collections.abc import Sequence

import numpy as np

from draftsmith.theory.acceptance import Array


def step_gains(chances: Sequence[np.ndarray], lookahead: int) -> list[Array]:
    """For each output, the steps that a certain acceptance at each of its positions would save over a certain rejection."""
    longest = max(len(one) for one in chances)
    starts = [longest - len(one) for one in chances]
    a_JN = np.zeros((longest, len(chances)))
    for at, (one, start) in enumerate(zip(chances, starts, strict=True)):
        a_JN[start:, at] = one
    steps_JN, further_JKN = _remaining(a_JN, lookahead)
    gain_JN = np.zeros_like(a_JN)
    reach_KN = np.zeros((lookahead + 1, len(chances)))
    begins_JN = np.arange(longest)[:, None] == np.array(starts)
    for j in range(longest):
        reach_KN[0, begins_JN[j]] = 1.0
        saved_KN = steps_JN[j + 1] - further_JKN[j + 1, :lookahead][::-1]  # with k-m-1 proposals left
        gain_JN[j] = (reach_KN[:lookahead] * saved_KN).sum(axis=0)
        rejected_N = (1.0 - a_JN[j]) * reach_KN[:lookahead].sum(axis=0) + reach_KN[lookahead]
        reach_KN[1:] = a_JN[j] * reach_KN[:lookahead]
        reach_KN[0] = rejected_N
    return [gain_JN[start:, at] for at, start in enumerate(starts)]


def _remaining(a_JN: Array, k: int) -> tuple[Array, Array]:
    """S and U, with zeros past the end."""
    longest, count = a_JN.shape
    steps_JN, further_JKN = np.zeros((longest + 1, count)), np.zeros((longest + 1, k + 1, count))
    for j in reversed(range(longest)):
        further_JKN[j, 0] = steps_JN[j + 1]
        further_JKN[j, 1:] = (1.0 - a_JN[j]) * steps_JN[j + 1] + a_JN[j] * further_JKN[j + 1, :k]
        steps_JN[j] = 1.0 + further_JKN[j, k]
    return steps_JN, further_JKN
