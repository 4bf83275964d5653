"""Who is answered by which bundle."""

from collections import Counter

from hypothesis import given, strategies as st

from services.traffic_split import Role, role_of
from stream.topics import partition_of

USERS = [f"user-{number}" for number in range(20_000)]
SHARES = st.floats(0, 1)


@given(st.text(), SHARES, SHARES)
def test_a_larger_share_only_moves_users_to_the_candidate(
    user: str, one: float, two: float
) -> None:
    small, large = sorted((one, two))
    if role_of(user, small) is Role.CANDIDATE:
        assert role_of(user, large) is Role.CANDIDATE
    assert role_of(user, 0) is Role.PRIMARY
    assert role_of(user, 1) is Role.CANDIDATE


def test_the_split_is_the_same_for_ever() -> None:
    """Nodes of different releases must agree."""
    chosen = [user for user in USERS[:40] if role_of(user, 0.1) is Role.CANDIDATE]
    assert chosen == ["user-4"]


def test_every_partition_has_its_share() -> None:
    users = Counter(partition_of(user, 8) for user in USERS)
    candidates = Counter(
        partition_of(user, 8) for user in USERS if role_of(user, 0.2) is Role.CANDIDATE
    )
    assert all(0.17 < candidates[each] / users[each] < 0.23 for each in range(8))
