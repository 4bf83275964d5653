"""The heads of the users seen lately, side by side in memory, so that a poll reads and changes them all at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from state import keys
from state.errors import CorruptValue
from state.head_codec import HEAD, Heads, decode_heads, has_history, make_head
from state.interaction import Rows
from state.key_value_store import Family, KeyValueStore
from state.user_state import UserMeta

_SPARE = 20_000
"""Room beside `max_users` for the users of a poll, before the table grows. Memory that is not used is not taken."""


class HeadTable:
    """A write-through cache: what is changed here is written to the store by the caller, or `clear` is called.

    A head keeps its slot until the next `find`. Holds `max_users`, and more only while one poll needs them.
    """

    def __init__(self, store: KeyValueStore, max_users: int) -> None:
        """An empty table over `store`, of which the caller is the only writer."""
        self._store = store
        self._max_users = max_users
        self.clear()

    def clear(self) -> None:
        """Forget everything; the store is asked again."""
        self._slot_of: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self.damaged: dict[bytes, str] = {}
        """Users whose stored head cannot be read, and why; in `heads` theirs are zeros, but for a length that counts them."""
        self._clock = 0
        self._used = np.zeros(self._max_users + _SPARE, np.int64)
        self.heads: Heads = np.zeros(self._max_users + _SPARE, HEAD)

    def find(self, users: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """The slot of each user in `heads`; a user of whom nothing is stored has a head of zeros."""
        if len(self._slot_of) > self._max_users:
            self._forget_older_half()
        slots = list(map(self._slot_of.get, users))
        if None in slots:
            self._load([user for user, slot in zip(users, slots, strict=True) if slot is None])
            slots = list(map(self._slot_of.get, users))
        found = np.array(slots, np.int64)
        self._clock += 1
        self._used[found] = self._clock
        return found

    def key(self, slot: int) -> bytes:
        """The store's key of the head at `slot`."""
        return self._keys[slot]

    def put(self, user: bytes, meta: UserMeta, open_rows: Rows) -> Heads:
        """Replace one user's head; returns it."""
        head = make_head(meta, open_rows)
        self.damaged.pop(user, None)
        self.heads[self._slot_of[user]] = head[0]
        return head

    def _load(self, missing: list[bytes]) -> None:
        new = list(dict.fromkeys(missing))
        first = len(self._keys)
        self._make_room(first + len(new))
        head_keys = [keys.user_prefix(user) + keys.HEAD for user in new]
        values = self._store.get(Family.USERS, head_keys)
        self.heads[first : first + len(new)] = np.zeros((), HEAD)
        stored = [index for index, value in enumerate(values) if value is not None]
        if stored:
            try:
                found = decode_heads([value for value in values if value is not None])
                self.heads[[first + index for index in stored]] = found
            except CorruptValue:
                for index in stored:
                    self._load_one(new[index], first + index, values[index] or b"")
        self._keys.extend(head_keys)
        self._slot_of.update(zip(new, range(first, first + len(new)), strict=True))

    def _load_one(self, user: bytes, slot: int, value: bytes) -> None:
        try:
            self.heads[slot] = decode_heads([value])[0]
        except CorruptValue as error:
            self.damaged[user] = f"head: {error}"
            self.heads["meta"]["length"][slot] = has_history(value)

    def _make_room(self, num_users: int) -> None:
        room = len(self.heads)
        if num_users > room:
            more = max(num_users, 2 * room) - room
            self.heads = np.concatenate([self.heads, np.zeros(more, HEAD)])
            self._used = np.concatenate([self._used, np.zeros(more, np.int64)])

    def _forget_older_half(self) -> None:
        num_users = len(self._keys)
        kept = np.argsort(self._used[:num_users], kind="stable")[-(self._max_users // 2) :]
        kept.sort()
        self.heads[: len(kept)] = self.heads[kept]
        self._used[: len(kept)] = self._used[kept]
        users = list(self._slot_of)
        self._slot_of = {users[old]: new for new, old in enumerate(kept.tolist())}
        self._keys = [self._keys[old] for old in kept.tolist()]
