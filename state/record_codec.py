"""Bytes of a user's meta data and of a summary; both begin with a format version and a CRC-32 of the rest."""

import struct
import zlib

import numpy as np

from state.errors import CorruptValue, UnknownFormat
from state.summary import Summary
from state.user_state import UserMeta

FORMAT_VERSION = 1
_ENVELOPE = struct.Struct("<BI")  # format version, CRC-32 of the body
_META = struct.Struct("<9q")  # the fields of UserMeta, in their order
_SUMMARY = struct.Struct("<QQqIII")  # boundary, count, built at, accumulator bytes, tokens, width


def encode_meta(meta: UserMeta) -> bytes:
    """Meta data to bytes."""
    return _seal(
        _META.pack(
            meta.version,
            meta.length,
            meta.first_position,
            meta.lifecycle_boundary,
            meta.tail_start,
            meta.newest_event_time_ms,
            meta.sealed_event_time_ms,
            meta.epoch,
            meta.deleted_until_ms,
        )
    )


def decode_meta(data: bytes) -> UserMeta:
    """Bytes to meta data. Raises UnknownFormat or CorruptValue."""
    fields = _META.unpack(_open(data, "meta data", _META.size))
    version, length, first, boundary, tail_start, newest, sealed, epoch, deleted_until = fields
    return UserMeta(
        version=version,
        length=length,
        first_position=first,
        lifecycle_boundary=boundary,
        tail_start=tail_start,
        newest_event_time_ms=newest,
        sealed_event_time_ms=sealed,
        epoch=epoch,
        deleted_until_ms=deleted_until,
    )


def encode_summary(summary: Summary) -> bytes:
    """A summary to bytes; its bundle version belongs to the key."""
    num_tokens, width = summary.tokens.shape
    fixed = _SUMMARY.pack(
        summary.boundary,
        summary.count,
        summary.built_at_ms,
        len(summary.accumulators),
        num_tokens,
        width,
    )
    return _seal(fixed + summary.accumulators + summary.tokens.astype("<f4").tobytes())


def decode_summary(data: bytes, bundle_version: str) -> Summary:
    """Bytes to a summary. Raises UnknownFormat or CorruptValue."""
    body = _open(data, "a summary", _SUMMARY.size)
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


def _seal(body: bytes) -> bytes:
    return _ENVELOPE.pack(FORMAT_VERSION, zlib.crc32(body)) + body


def _open(data: bytes, what: str, min_bytes: int) -> bytes:
    if len(data) < _ENVELOPE.size + min_bytes:
        raise CorruptValue(
            f"{what} has {len(data)} bytes; at least {_ENVELOPE.size + min_bytes} are needed"
        )
    version, checksum = _ENVELOPE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"{what} has format version {version}; this release reads version {FORMAT_VERSION}"
        )
    body = data[_ENVELOPE.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptValue(f"{what} fails its checksum; restore the store from a checkpoint")
    return body
