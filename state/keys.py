"""The key layout, alone.

Family `users`, everything of one user under one prefix, all of one partition side by side:

    partition (2, big-endian) | user id length (2) | user id | kind (1) | suffix

    kind 1  meta        no suffix
    kind 2  tail        first position of the block (8, big-endian)
    kind 3  chunk       first position (8, big-endian)
    kind 5  summary     bundle version, UTF-8       (kind 4 is kept for the repeats table)

Family `system`:

    "format"                                  the store's format version and history configuration
    "offset" | partition (2)                  next offset to apply (8, big-endian) | fingerprint of the record before (8)
    "dirty"  | partition (2) | user id        lifecycle boundary a summary is owed for
    "erase"  | partition (2) | user id        epoch of a deletion that may still lie in files on disk
"""

import struct

_PARTITION = struct.Struct(">H")
_USER = struct.Struct(">HH")
_POSITION = struct.Struct(">Q")

META, TAIL, CHUNK, SUMMARY = b"\x01", b"\x02", b"\x03", b"\x05"
FORMAT_KEY = b"format"
_OFFSET = b"offset"
_DIRTY = b"dirty"
_ERASE = b"erase"


def user_prefix(partition: int, user_id: str) -> bytes:
    """What every key of a user begins with; never the beginning of another user's."""
    name = user_id.encode()
    return _USER.pack(partition, len(name)) + name


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


def partition_range(partition: int) -> tuple[bytes, bytes]:
    """First key and the key behind the last of a partition in family `users`."""
    return _PARTITION.pack(partition), after(_PARTITION.pack(partition))


def split_user_key(key: bytes) -> tuple[str, bytes]:
    """User id and the rest (kind and suffix) of a key in family `users`."""
    _, num_bytes = _USER.unpack_from(key)
    end = _USER.size + num_bytes
    return key[_USER.size : end].decode(), key[end:]


def offset_key(partition: int) -> bytes:
    """Key of a partition's next offset."""
    return _OFFSET + _PARTITION.pack(partition)


def offset_range() -> tuple[bytes, bytes]:
    """Range of all offset keys."""
    return _OFFSET, after(_OFFSET)


def offset_partition(key: bytes) -> int:
    """Inverse of offset_key."""
    (partition,) = _PARTITION.unpack(key[len(_OFFSET) :])
    return int(partition)


def dirty_key(partition: int, user_id: str) -> bytes:
    """Key of a user's dirty mark."""
    return _DIRTY + _PARTITION.pack(partition) + user_id.encode()


def dirty_range(partition: int | None = None) -> tuple[bytes, bytes]:
    """Range of the dirty marks of one partition, or of all."""
    start = _DIRTY if partition is None else _DIRTY + _PARTITION.pack(partition)
    return start, after(start)


def dirty_user(key: bytes) -> tuple[int, str]:
    """Partition and user id of a dirty mark."""
    (partition,) = _PARTITION.unpack_from(key, len(_DIRTY))
    return int(partition), key[len(_DIRTY) + _PARTITION.size :].decode()


def erase_key(partition: int, user_id: str) -> bytes:
    """Key of a user's erasure mark."""
    return _ERASE + _PARTITION.pack(partition) + user_id.encode()


def erase_range() -> tuple[bytes, bytes]:
    """Range of all erasure marks."""
    return _ERASE, after(_ERASE)


def erase_user(key: bytes) -> tuple[int, str]:
    """Partition and user id of an erasure mark."""
    (partition,) = _PARTITION.unpack_from(key, len(_ERASE))
    return int(partition), key[len(_ERASE) + _PARTITION.size :].decode()


def after(prefix: bytes) -> bytes:
    """Smallest key that is greater than every key beginning with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
