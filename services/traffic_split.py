"""Which bundle answers a user: a matter of the user id and the candidate's share alone, on every node the same."""

import hashlib
from enum import StrEnum

_SCALE = 1 << 64


class Role(StrEnum):
    """What a served bundle is."""

    PRIMARY = "primary"
    CANDIDATE = "candidate"


def role_of(user_id: str, share: float) -> Role:
    """The candidate for `share` of all users.

    A larger share only moves users to the candidate, a smaller one only back. The hash is not Kafka's, so that every
    partition has its share.
    """
    digest = hashlib.blake2b(user_id.encode(), digest_size=8, person=b"gemstream.split").digest()
    return Role.CANDIDATE if int.from_bytes(digest) < share * _SCALE else Role.PRIMARY
