"""Bytes of a summary: a format version and a CRC-32 of the rest, then the rest. The bundle version belongs to the key."""

import struct
import zlib

import numpy as np

from state.errors import CorruptValue, UnknownFormat
from state.summary import Summary

FORMAT_VERSION = 1
_ENVELOPE = struct.Struct("<BI")  # format version, CRC-32 of the body
_SUMMARY = struct.Struct("<QQqIII")  # boundary, count, built at, accumulator bytes, tokens, width


def encode_summary(summary: Summary) -> bytes:
    """A summary to bytes."""
    num_tokens, width = summary.tokens.shape
    fixed = _SUMMARY.pack(
        summary.boundary,
        summary.count,
        summary.built_at_ms,
        len(summary.accumulators),
        num_tokens,
        width,
    )
    body = fixed + summary.accumulators + summary.tokens.astype("<f4").tobytes()
    return _ENVELOPE.pack(FORMAT_VERSION, zlib.crc32(body)) + body


def decode_summary(data: bytes, bundle_version: str) -> Summary:
    """Bytes to a summary. Raises UnknownFormat or CorruptValue."""
    body = _open(data)
    boundary, count, built_at_ms, num_bytes, num_tokens, width = _SUMMARY.unpack_from(body)
    tokens_start = _SUMMARY.size + num_bytes
    tokens = np.frombuffer(body, "<f4", num_tokens * width, tokens_start)
    return Summary(
        bundle_version=bundle_version,
        boundary=boundary,
        count=count,
        accumulators=body[_SUMMARY.size : tokens_start],
        tokens=tokens.reshape(num_tokens, width).astype(np.float32),
        built_at_ms=built_at_ms,
    )


def _open(data: bytes) -> bytes:
    min_bytes = _ENVELOPE.size + _SUMMARY.size
    if len(data) < min_bytes:
        raise CorruptValue(f"a summary has {len(data)} bytes; at least {min_bytes} are needed")
    version, checksum = _ENVELOPE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"a summary has format version {version}; this release reads version {FORMAT_VERSION}"
        )
    body = data[_ENVELOPE.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptValue(
            "a summary fails its checksum; restore the store from a checkpoint that `gemstream store verify --deep` finds good"
        )
    return body
