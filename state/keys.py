"""The key layout of one partition's database, alone.

Family `users`, everything of one user under one prefix:

    user id length (2, big-endian) | user id | kind (1) | suffix

    kind 1  head        no suffix: meta data and the newest interactions
    kind 2  tail        first position of the block (8, big-endian)
    kind 3  chunk       first position (8, big-endian)
    kind 5  summary     bundle version, UTF-8       (kind 4 is free)
    kind 6  forgotten   no suffix: items the user had forgotten; where the head says that there are any

Family `system`:

    "format"            the store's format version, partition and history configuration
    "position"          next offset to apply (8, big-endian) | fingerprint of the record before (8)
    "users"             how many users have a history (8, big-endian)
    "dirty" | user id   lifecycle boundary a summary is owed for
    "next" | user id    lifecycle boundary a summary is owed for, of the bundle that is being rolled out
    "rollout"           that bundle, and how far its rollout is (state/bundle_rollout.py)
    "bundles"           when an operator last changed one of these (milliseconds, 8, big-endian)
    "retired" | version how far the summaries of a bundle that is not served any more are removed
    "erase" | user id   epoch of the last deletion; what it deleted may still lie in files on disk
    "backfill" | name   how far a backfill was taken (state/backfill_intake.py)
    "damaged" | user id a value of whom is damaged: why, and since when (state/quarantine.py)
    "hole" | offset     records from that offset (8, big-endian) on that retention removed before they were applied
"""

import struct

_LENGTH = struct.Struct(">H")
_LENGTHS = [_LENGTH.pack(length) for length in range(1 << 10)]  # four times what a user id may have
_POSITION = struct.Struct(">Q")

HEAD, TAIL, CHUNK, SUMMARY, FORGOTTEN = b"\x01", b"\x02", b"\x03", b"\x05", b"\x06"
FORMAT_KEY = b"format"
POSITION_KEY = b"position"
USERS_KEY = b"users"
_DIRTY = b"dirty"
_NEXT = b"next"
ROLLOUT_KEY = b"rollout"
BUNDLES_KEY = b"bundles"
_RETIRED = b"retired"
_ERASE = b"erase"
_DAMAGED = b"damaged"
_HOLE = b"hole"
_BACKFILL = b"backfill"


def user_prefix(user: bytes) -> bytes:
    """What every key of a user (id in UTF-8) begins with; never the beginning of another user's."""
    return _LENGTHS[len(user)] + user


def chunk_key(prefix: bytes, position: int) -> bytes:
    """Key of the chunk that starts at `position`."""
    return prefix + CHUNK + _POSITION.pack(position)


def tail_key(prefix: bytes, position: int) -> bytes:
    """Key of the block of the tail that starts at `position`."""
    return prefix + TAIL + _POSITION.pack(position)


def summary_key(prefix: bytes, bundle_version: str) -> bytes:
    """Key of the summary under one bundle version."""
    return prefix + SUMMARY + bundle_version.encode()


def summary_bundle_version(prefix: bytes, key: bytes) -> str:
    """Inverse of summary_key."""
    return key[len(prefix) + len(SUMMARY) :].decode()


def all_users() -> tuple[bytes, bytes]:
    """First key and the key behind the last in family `users`."""
    return b"", b"\xff"


def split_user_key(key: bytes) -> tuple[bytes, bytes]:
    """User id and the rest (kind and suffix) of a key in family `users`."""
    (num_bytes,) = _LENGTH.unpack_from(key)
    end = _LENGTH.size + num_bytes
    return key[_LENGTH.size : end], key[end:]


def dirty_key(user: bytes) -> bytes:
    """Key of a user's dirty mark."""
    return _DIRTY + user


def dirty_range() -> tuple[bytes, bytes]:
    """Range of all dirty marks."""
    return _DIRTY, after(_DIRTY)


def dirty_user(key: bytes) -> bytes:
    """Inverse of dirty_key."""
    return key[len(_DIRTY) :]


def next_dirty_key(user: bytes) -> bytes:
    """Key of a user's dirty mark for the bundle that is being rolled out."""
    return _NEXT + user


def next_dirty_range() -> tuple[bytes, bytes]:
    """Range of all of these; each begins with the first."""
    return _NEXT, after(_NEXT)


def retired_key(bundle_version: str) -> bytes:
    """Key of the record of a retired bundle."""
    return _RETIRED + bundle_version.encode()


def retired_range() -> tuple[bytes, bytes]:
    """Range of these records."""
    return _RETIRED, after(_RETIRED)


def erase_key(user: bytes) -> bytes:
    """Key of a user's erasure mark."""
    return _ERASE + user


def erase_range() -> tuple[bytes, bytes]:
    """Range of all erasure marks."""
    return _ERASE, after(_ERASE)


def erase_user(key: bytes) -> bytes:
    """Inverse of erase_key."""
    return key[len(_ERASE) :]


def damaged_key(user: bytes) -> bytes:
    """Key of the mark of a damaged user."""
    return _DAMAGED + user


def damaged_range() -> tuple[bytes, bytes]:
    """Range of these marks."""
    return _DAMAGED, after(_DAMAGED)


def hole_key(start_offset: int) -> bytes:
    """Key of the hole that begins at an offset."""
    return _HOLE + _POSITION.pack(start_offset)


def hole_range() -> tuple[bytes, bytes]:
    """Range of all holes."""
    return _HOLE, after(_HOLE)


def backfill_key(name: str) -> bytes:
    """Key of the record of one backfill."""
    return _BACKFILL + name.encode()


def backfill_range() -> tuple[bytes, bytes]:
    """Range of the records of all backfills."""
    return _BACKFILL, after(_BACKFILL)


def after(prefix: bytes) -> bytes:
    """Smallest key that is greater than every key beginning with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
