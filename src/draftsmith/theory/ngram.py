"""Prompt lookup: propose the tokens that followed the longest earlier occurrence of the last few. The baseline that needs
no model. Follows vLLM's rule: the longest n-gram within [min, max], its earliest occurrence, at most what is left of it."""

import numpy as np

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class NgramIndex:
    """The n-grams of one growing sequence, each with the place where its earliest occurrence ends."""

    def __init__(self, tokens: Tokens, max_ngram: int, min_ngram: int) -> None:
        self._tokens: list[int] = []
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Tokens) -> None:
        """Append tokens. The n-grams that end the sequence are indexed only once something follows them."""
        for token in tokens.tolist():
            self._index_suffixes()
            self._tokens.append(token)

    def propose(self, lookahead: int) -> list[int]:
        """Up to `lookahead` tokens; none where the last tokens have not been seen before."""
        for size in self._sizes:
            if size <= len(self._tokens) and (end := self._ends.get(tuple(self._tokens[-size:]))) is not None:
                return self._tokens[end : end + lookahead]
        return []

    def _index_suffixes(self) -> None:
        end = len(self._tokens)
        for size in self._sizes:
            if size <= end:
                self._ends.setdefault(tuple(self._tokens[end - size : end]), end)


def ngram_chances(prompt: Tokens, output: Tokens, num_output: int, widest: int, max_ngram: int, min_ngram: int) -> Matrix:
    """Entry [j, m] is 1 where a step from output token j has an m-th proposal and it is the token that the target wrote."""
    index = NgramIndex(prompt, max_ngram, min_ngram)
    hits = np.zeros((num_output, widest))
    for j in range(num_output):
        proposal = index.propose(widest)
        actual = output[j : j + len(proposal)]
        hits[j, : len(actual)] = actual == np.array(proposal[: len(actual)], dtype=actual.dtype)
        index.extend(output[j : j + 1])
    return hits
