"""64-bit hashes of event ids, for one and for many."""

import numpy as np
import numpy.typing as npt

from state.compiled import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD_BYTES = 8


@compiled
def hash_slices(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    times_ms: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint64]:
    """`hash_slice` of data[starts[i]:ends[i]] and times_ms[i] for every i."""
    hashes = np.empty(len(starts), np.uint64)
    for i in range(len(starts)):
        hashes[i] = hash_slice(data, starts[i], ends[i], times_ms[i])
    return hashes


@compiled
def hash_slice(data: npt.NDArray[np.uint8], start: int, end: int, time_ms: int) -> np.uint64:
    """Hash of data[start:end] and a time; never 0. Little-endian words go through splitmix64's finaliser in a chain."""
    mixed = _mix(np.uint64(time_ms) * _GOLDEN + np.uint64(end - start))
    for word_start in range(start, end, _WORD_BYTES):
        word = np.uint64(0)
        for i in range(min(_WORD_BYTES, end - word_start)):
            word |= np.uint64(data[word_start + i]) << np.uint64(8 * i)
        mixed = _mix(mixed ^ word)
    return max(mixed, np.uint64(1))


@compiled
def _mix(word: np.uint64) -> np.uint64:
    """One step of splitmix64: other words give other words."""
    word += _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))
