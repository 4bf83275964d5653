"""Counter-based randomness: a generator per seed, purpose and user, so that nothing depends on who draws first."""

import numpy as np

CATALOGUE, LIFE, ITEMS, TIMES, DISORDER = range(5)
_PURPOSES = 8


def generator(seed: int, purpose: int, user: int) -> np.random.Generator:
    """Philox keyed by the two words (seed, user and purpose)."""
    key = np.array([seed, user * _PURPOSES + purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
