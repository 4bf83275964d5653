"""Bytes of a summary, in the envelope of state/envelope.py. The bundle version belongs to the key.

The body of version 2, little-endian: boundary (8), count (8), built at (8), bytes of accumulators (4), tokens (4), their
width (4), bytes of item statistics (4), then accumulators, tokens as float32, item statistics. Version 1 has none of
these, and no field for their length.
"""

import struct

import numpy as np

from state.envelope import seal, unseal
from state.summary import Summary

FORMAT_VERSION = 2
_FIXED = {1: struct.Struct("<QQqIII"), 2: struct.Struct("<QQqIIII")}


def encode_summary(summary: Summary) -> bytes:
    """A summary to bytes."""
    num_tokens, width = summary.tokens.shape
    fixed = _FIXED[FORMAT_VERSION].pack(
        summary.boundary,
        summary.count,
        summary.built_at_ms,
        len(summary.accumulators),
        num_tokens,
        width,
        len(summary.item_statistics),
    )
    tokens = summary.tokens.astype("<f4").tobytes()
    body = fixed + summary.accumulators + tokens + summary.item_statistics
    return seal(FORMAT_VERSION, body)


def decode_summary(data: bytes, bundle_version: str) -> Summary:
    """Bytes of any version to a summary. Raises UnknownFormat or CorruptValue."""
    version, body = unseal(data, "a summary", FORMAT_VERSION, min_bytes=_FIXED[1].size)
    fixed = _FIXED[version]
    boundary, count, built_at_ms, num_bytes, num_tokens, width, *_ = fixed.unpack_from(body)
    tokens_start = fixed.size + num_bytes
    tokens = np.frombuffer(body, "<f4", num_tokens * width, tokens_start)
    return Summary(
        bundle_version=bundle_version,
        boundary=boundary,
        count=count,
        accumulators=body[fixed.size : tokens_start],
        tokens=tokens.reshape(num_tokens, width).astype(np.float32),
        built_at_ms=built_at_ms,
        item_statistics=body[tokens_start + tokens.nbytes :],
    )
