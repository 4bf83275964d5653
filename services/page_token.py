"""Page tokens: what the pages before have shown, in a form that only its own user can hand back.

    1 byte format | 8 bytes digest of user and items | zlib of the ids' differences, ascending, byte plane by byte plane

Nothing is kept on the server, so a page is right on any node, after any restart and whatever happened to the state.
"""

import base64
import binascii
import hashlib
import zlib

import numpy as np
import numpy.typing as npt

from services.errors import InvalidRequest

ItemIds = npt.NDArray[np.uint64]

MAX_SHOWN = 2_000
"""Items over all pages: the page that reaches it is the last."""
_FORMAT = 1
_DIGEST_BYTES = 8
_MAX_CHARACTERS = 24_000
"""Ids that do not compress: 2,000 of 8 bytes, in base 64."""


def make_page_token(user_id: str, shown: ItemIds) -> str:
    """The token behind pages that have shown these items, at most MAX_SHOWN."""
    differences = np.diff(np.sort(shown), prepend=np.uint64(0)).astype("<u8")
    planes = differences.view(np.uint8).reshape(-1, 8).T.tobytes()
    payload = zlib.compress(planes)
    token = bytes([_FORMAT]) + _digest(user_id, payload) + payload
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def read_page_token(token: str, user_id: str) -> ItemIds:
    """The items shown, ascending. Raises InvalidRequest for what `make_page_token` has not made for this user."""
    if len(token) > _MAX_CHARACTERS:
        raise InvalidRequest(
            f"page_token has {len(token)} characters; none of ours has more than {_MAX_CHARACTERS}"
        )
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _broken() from error
    if not data or data[0] != _FORMAT:
        raise InvalidRequest(
            "page_token is not of this release's format; begin with the first page"
        )
    digest, payload = data[1 : 1 + _DIGEST_BYTES], data[1 + _DIGEST_BYTES :]
    if digest != _digest(user_id, payload):
        raise _broken()
    return _item_ids(payload)


def _item_ids(payload: bytes) -> ItemIds:
    """The digest is no secret: what is inside may still be anything."""
    inflate = zlib.decompressobj()
    try:
        planes = inflate.decompress(payload, 8 * MAX_SHOWN + 1)
    except zlib.error as error:
        raise _broken() from error
    if not inflate.eof or inflate.unused_data or len(planes) % 8 or len(planes) > 8 * MAX_SHOWN:
        raise _broken()
    columns = np.frombuffer(planes, np.uint8).reshape(8, -1)
    return (
        np.ascontiguousarray(columns.T).view("<u8")[:, 0].astype(np.uint64).cumsum(dtype=np.uint64)
    )


def _digest(user_id: str, payload: bytes) -> bytes:
    user = user_id.encode()
    return hashlib.blake2b(
        len(user).to_bytes(2) + user + payload, digest_size=_DIGEST_BYTES, person=b"gemstream.page"
    ).digest()


def _broken() -> InvalidRequest:
    return InvalidRequest(
        "page_token is damaged or belongs to another user; hand back `next_page_token` as it was, with the same user_id"
    )
