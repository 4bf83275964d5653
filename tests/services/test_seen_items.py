"""What users have seen: the cache gives what a whole read gives, whatever happened in between."""

import numpy as np
from hypothesis import given, strategies as st

from model.query import ItemIds
from services.seen_items import SeenItemsCache
from state.seen_items import KnownSeen, SeenItems
from state.user_store import UserStore
from tests.services.nodes import FakeOwner


class OwnersStore:
    """Reads as an inference node does, and counts the items that came."""

    def __init__(self, owner: FakeOwner) -> None:
        self.owner, self.items, self.calls = owner, 0, 0

    def store_of(self, user_id: str) -> UserStore:
        return self.owner.store_of(user_id)

    async def read_seen(
        self, user_id: str, known: KnownSeen | None = None, timeout_s: float | None = None
    ) -> SeenItems | None:
        seen = self.store_of(user_id).read_seen(user_id, known)
        self.calls += 1
        self.items += 0 if seen is None else len(seen.item_ids)
        return seen

    def whole(self, user_id: str) -> list[int]:
        seen = self.store_of(user_id).read_seen(user_id)
        return [] if seen is None else seen.item_ids.tolist()


steps = st.lists(
    st.one_of(st.integers(1, 9), st.just("forget"), st.just("delete"), st.just("look")),
    max_size=14,
)


@given(steps, st.sampled_from([0, 1_000, 1 << 20]))
async def test_the_cache_is_exact(happened: list[int | str], max_bytes: int) -> None:
    owner = FakeOwner()
    users = OwnersStore(owner)
    cache = SeenItemsCache(users, max_bytes)
    for step in [*happened, "look"]:
        if isinstance(step, int):
            owner.add("ann", step)
        elif step == "forget":
            await owner.forget("ann", 3)
        elif step == "delete":
            await owner.forget("ann", 0)
        else:
            assert (await cache.item_ids("ann")).tolist() == users.whole("ann")
            assert cache.num_bytes <= max_bytes


async def test_only_what_is_new_is_read() -> None:
    owner = FakeOwner()
    users = OwnersStore(owner)
    cache = SeenItemsCache(users, 1 << 20)
    owner.add("ann", 16)
    first = await cache.item_ids("ann")
    assert users.items == len(first) > 0
    assert (await cache.item_ids("ann")).tolist() == first.tolist()
    assert (users.items, users.calls) == (len(first), 2)


async def test_bytes_are_bounded_by_leaving_out_who_was_asked_for_longest_ago() -> None:
    class Users:
        known: list[KnownSeen | None]

        def __init__(self) -> None:
            self.known = []

        async def read_seen(
            self, user_id: str, known: KnownSeen | None = None, timeout_s: float | None = None
        ) -> SeenItems:
            self.known.append(known)
            ids: ItemIds = np.arange(1, 11, dtype=np.uint64)
            start = known.end if known else 0
            ids = ids[start:]
            return SeenItems(
                epoch=0, hole_end=0, first_position=0, start=start, end=10, item_ids=ids
            )

    users = Users()
    cache = SeenItemsCache(users, 1_000)  # two of 480 bytes
    for user in ("a", "b", "a", "c", "a", "b"):
        assert len(await cache.item_ids(user)) == 10
        assert cache.num_bytes <= 1_000
    assert [known is not None for known in users.known] == [False, False, True, False, True, False]


async def test_an_unknown_user_has_seen_nothing() -> None:
    cache = SeenItemsCache(OwnersStore(FakeOwner()), 1_000)
    assert (await cache.item_ids("nobody")).tolist() == []
