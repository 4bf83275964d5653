"""Random small catalogues of SIDs, for hypothesis."""

import itertools

import numpy as np
from hypothesis import strategies as st

NUM_CODES = {1: 20, 2: 6, 3: 4, 4: 3, 5: 2}
"""By number of levels."""


@st.composite
def catalogues(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Distinct SIDs of one to five levels in order, and counts."""
    levels = draw(st.integers(1, 5))
    everything = list(itertools.product(range(NUM_CODES[levels]), repeat=levels))
    sids = sorted(draw(st.sets(st.sampled_from(everything), min_size=1, max_size=40)))
    counts = draw(st.lists(st.integers(0, 50), min_size=len(sids), max_size=len(sids)))
    return np.array(sids), np.array(counts)
