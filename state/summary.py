"""A user's compressed lifecycle segment under one bundle, and the rule for replacing it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_SUMMARY_BYTES = 4 << 20
"""Of accumulators, tokens and item statistics together: what a state node takes."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The lifecycle segment [0, boundary) of one user, compressed under one bundle version."""

    bundle_version: str
    boundary: int
    """Covers the positions before this one."""
    count: int
    """Interactions folded in."""
    accumulators: bytes
    """The compressor's additive state, in its own layout."""
    tokens: npt.NDArray[np.float32]
    """[num_tokens, width]: what the lifecycle stream attends to."""
    built_at_ms: int
    """Wall-clock time of the worker that built it."""
    item_statistics: bytes = b""
    """Of [0, boundary), in the layout of state/item_statistics_codec.py; empty: an earlier release kept none."""


def may_replace(
    stored: Summary | None, offered: Summary, base_boundary: int, lifecycle_boundary: int
) -> bool:
    """Compare-and-set: true when `offered` extends exactly what is stored and does not pass the boundary."""
    stored_boundary = stored.boundary if stored else 0
    return stored_boundary == base_boundary < offered.boundary <= lifecycle_boundary
