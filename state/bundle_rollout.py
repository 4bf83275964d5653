"""Bundles that come and go, as one partition's store knows them: who is owed a summary of the next bundle, which are retired.

A rollout walks over all users and marks those who lack its summary; where a boundary moves meanwhile, the fold marks them,
too. Once the bundle before is retired, the rollout's bundle is the one that ordinary marks speak of. A retirement walks over
all users and removes their summaries of the bundle; its record stays, so that none comes back. Each walk's progress is
written with what it did.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import islice

from state import keys
from state.errors import CorruptValue, RolloutRefused
from state.head_codec import decode_head, stored_length
from state.key_value_store import Batch, Family, KeyValueStore
from state.summary_codec import decode_summary

_MAX_VERSION_BYTES = 64
_MAX_OWED = 10_000
"""Marks that become ordinary ones in one batch."""


class WalkState(StrEnum):
    """How a walk over all users stands."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Over the users of a partition, for one bundle version."""

    bundle_version: str
    state: WalkState = WalkState.RUNNING
    users_per_s: float
    """Who are marked, or lose a summary; of the whole node."""
    after_user: str = ""
    """The walk goes on behind this user."""
    walked: int = 0
    """Users so far."""
    changed: int = 0
    """Users of these that were marked, or lost a summary."""
    started_at_ms: int

    def encode(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Walk":
        """Raises CorruptValue."""
        try:
            fields = json.loads(value)
            return cls(**{**fields, "state": WalkState(fields["state"])})
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptValue(
                f"the record of a bundle's rollout cannot be read: {error}"
            ) from error


@dataclass(frozen=True)
class BundleStates:
    """What is stored of bundles."""

    rollout: Walk | None = None
    retirements: tuple[Walk, ...] = ()

    @property
    def next_version(self) -> str:
        """The bundle that has marks of its own; "" where there is none."""
        return self.rollout.bundle_version if self.rollout else ""

    def is_retired(self, bundle_version: str) -> bool:
        """Whether its summaries are neither kept nor taken."""
        return any(each.bundle_version == bundle_version for each in self.retirements)

    def mark_key(self, user: bytes, bundle_version: str) -> bytes:
        """Of the mark that speaks of this bundle."""
        next_is_meant = self.mark_version(bundle_version) != ""
        return keys.next_dirty_key(user) if next_is_meant else keys.dirty_key(user)

    def mark_version(self, bundle_version: str) -> str:
        """What a mark that speaks of this bundle calls it: only the one that is being rolled out has a name there."""
        return bundle_version if bundle_version == self.next_version else ""


def read_bundles(store: KeyValueStore) -> BundleStates:
    """Raises CorruptValue."""
    (rollout,) = store.get(Family.SYSTEM, [keys.ROLLOUT_KEY])
    retired = store.scan(Family.SYSTEM, *keys.retired_range())
    return BundleStates(
        Walk.decode(rollout) if rollout else None, tuple(Walk.decode(value) for _, value in retired)
    )


def put_changed_at(batch: Batch, now_ms: int) -> None:
    """An operator's change is in the batch: copies of the store from before it do not know of it."""
    batch.put(Family.SYSTEM, keys.BUNDLES_KEY, now_ms.to_bytes(8, "big"))


def read_bundles_changed_at_ms(store: KeyValueStore) -> int:
    """When an operator last changed something here; 0: never."""
    (value,) = store.get(Family.SYSTEM, [keys.BUNDLES_KEY])
    return int.from_bytes(value or b"", "big")


def start_rollout(
    store: KeyValueStore, bundle_version: str, users_per_s: float, now_ms: int
) -> Batch:
    """Begin, or go on at another rate. Raises RolloutRefused while another bundle's is under way."""
    _check(bundle_version, users_per_s)
    bundles, batch = read_bundles(store), Batch()
    walk = bundles.rollout
    if walk is None:
        walk = Walk(bundle_version=bundle_version, users_per_s=users_per_s, started_at_ms=now_ms)
    elif walk.bundle_version != bundle_version:
        raise RolloutRefused(
            f"bundle {walk.bundle_version} is being rolled out; retire the one before it, or stop it"
        )
    batch.delete(Family.SYSTEM, keys.retired_key(bundle_version))
    _put(batch, replace(walk, users_per_s=users_per_s))
    return batch


def set_rollout_state(store: KeyValueStore, bundle_version: str, state: WalkState) -> Batch:
    """Pause or go on; what is done stays so. Raises RolloutRefused where it is not this bundle that is rolled out."""
    walk, batch = _rollout(store, bundle_version), Batch()
    if walk.state is not WalkState.DONE:
        _put(batch, replace(walk, state=state))
    return batch


def stop_rollout(store: KeyValueStore, bundle_version: str) -> Batch:
    """Give it up: its marks go, its summaries stay until it is retired. Raises RolloutRefused as above."""
    _rollout(store, bundle_version)
    batch = Batch()
    batch.delete(Family.SYSTEM, keys.ROLLOUT_KEY)
    batch.remove_range(Family.SYSTEM, *keys.next_dirty_range())
    return batch


def walk_again(store: KeyValueStore) -> Batch:
    """Users came in another way than through the fold: the rollout looks at all once more."""
    walk, batch = read_bundles(store).rollout, Batch()
    if walk is not None:
        state = WalkState.RUNNING if walk.state is WalkState.DONE else walk.state
        _put(batch, replace(walk, state=state, after_user="", walked=0))
    return batch


@dataclass(frozen=True)
class Step:
    """A part of a walk: the batch to write, and how many users it changes."""

    batch: Batch
    changed: int = 0
    walked: int = 0


def mark_some(store: KeyValueStore, max_changed: int, max_users: int) -> Step:
    """The next step of a running rollout: marks, and how far it came."""
    walk = read_bundles(store).rollout
    if walk is None or walk.state is not WalkState.RUNNING:
        return Step(Batch())

    def mark(batch: Batch, user: bytes, boundary: int) -> bool:
        mark_key = keys.next_dirty_key(user)
        (mark,) = store.get(Family.SYSTEM, [mark_key])
        if mark is not None or _covered(store, user, walk.bundle_version) >= boundary:
            return False
        batch.put(Family.SYSTEM, mark_key, boundary.to_bytes(8, "big"))
        return True

    return _walk_on(store, keys.ROLLOUT_KEY, walk, mark, max_changed, max_users)


def remove_some(
    store: KeyValueStore, bundle_version: str, max_changed: int, max_users: int
) -> Step:
    """The next step of a retirement."""
    retirements = read_bundles(store).retirements
    walks = [each for each in retirements if each.bundle_version == bundle_version]
    if not walks or walks[0].state is not WalkState.RUNNING:
        return Step(Batch())

    def remove(batch: Batch, user: bytes, boundary: int) -> bool:
        key = keys.summary_key(keys.user_prefix(user), bundle_version)
        (summary,) = store.get(Family.USERS, [key])
        if summary is not None:
            batch.delete(Family.USERS, key)
        return summary is not None

    key = keys.retired_key(bundle_version)
    return _walk_on(store, key, walks[0], remove, max_changed, max_users)


def retire(store: KeyValueStore, bundle_version: str, users_per_s: float, now_ms: int) -> Batch:
    """Begin to remove a bundle's summaries, for good. Raises RolloutRefused while a rollout needs them.

    With this a rollout ends that has marked all its users: its bundle is the ordinary one from now on.
    """
    _check(bundle_version, users_per_s)
    bundles, batch = read_bundles(store), Batch()
    if bundles.is_retired(bundle_version):
        return batch
    if bundles.rollout is not None:
        _end_rollout(store, bundles.rollout, bundle_version, batch)
    walk = Walk(bundle_version=bundle_version, users_per_s=users_per_s, started_at_ms=now_ms)
    batch.put(Family.SYSTEM, keys.retired_key(bundle_version), walk.encode())
    return batch


def _end_rollout(store: KeyValueStore, rollout: Walk, retired: str, batch: Batch) -> None:
    """What is still owed of the next bundle is owed of the ordinary one, which it becomes."""
    version = rollout.bundle_version
    if version == retired:
        raise RolloutRefused(f"bundle {version} is being rolled out; stop it first")
    if rollout.state is not WalkState.DONE:
        raise RolloutRefused(
            f"the rollout of bundle {version} is {rollout.state}; bundle {retired} can be retired once all users are "
            "marked, or the rollout is stopped"
        )
    start, end = keys.next_dirty_range()
    marks = list(islice(store.scan(Family.SYSTEM, start, end), _MAX_OWED + 1))
    if len(marks) > _MAX_OWED:
        raise RolloutRefused(
            f"more than {_MAX_OWED:,} users are owed a summary of bundle {version}; wait for its workers before "
            f"bundle {retired} is retired"
        )
    for key, value in marks:
        batch.put(Family.SYSTEM, keys.dirty_key(key[len(start) :]), value)
    batch.remove_range(Family.SYSTEM, start, end)
    batch.delete(Family.SYSTEM, keys.ROLLOUT_KEY)


def _walk_on(
    store: KeyValueStore,
    record_key: bytes,
    walk: Walk,
    change: Callable[[Batch, bytes, int], bool],
    max_changed: int,
    max_users: int,
) -> Step:
    batch, changed, walked, last, at_end = Batch(), 0, 0, walk.after_user, True
    for user, boundary in _users_after(store, walk.after_user):
        if changed >= max_changed or walked >= max_users:
            at_end = False
            break
        walked, last = walked + 1, user.decode()
        if boundary:
            changed += change(batch, user, boundary)
    now = replace(
        walk,
        state=WalkState.DONE if at_end else walk.state,
        after_user=last,
        walked=walk.walked + walked,
        changed=walk.changed + changed,
    )
    batch.put(Family.SYSTEM, record_key, now.encode())
    return Step(batch, changed, walked)


def _users_after(store: KeyValueStore, user_id: str) -> Iterator[tuple[bytes, int]]:
    """Users in key order, each with its lifecycle boundary; one seek each. One whose head is damaged counts as without."""
    start, end = keys.all_users()
    if user_id:
        start = keys.after(keys.user_prefix(user_id.encode()))
    cursor = store.scan(Family.USERS, start, end)
    for key, value in cursor:
        user, rest = keys.split_user_key(key)
        if rest == keys.HEAD and stored_length(value):  # what is left of a deleted user has none
            yield user, _boundary(value)
        cursor.seek(keys.after(keys.user_prefix(user)))


def _boundary(head: bytes) -> int:
    try:
        return decode_head(head)[0].lifecycle_boundary
    except CorruptValue:
        return 0  # whoever asks for this user meets it


def _covered(store: KeyValueStore, user: bytes, bundle_version: str) -> int:
    """Where the user's summary ends; 0 without one."""
    (summary,) = store.get(Family.USERS, [keys.summary_key(keys.user_prefix(user), bundle_version)])
    try:
        return decode_summary(summary, bundle_version).boundary if summary else 0
    except CorruptValue:
        return 0  # whoever is to replace it meets it


def _rollout(store: KeyValueStore, bundle_version: str) -> Walk:
    walk = read_bundles(store).rollout
    if walk is None or walk.bundle_version != bundle_version:
        now = "none is" if walk is None else f"{walk.bundle_version} is"
        raise RolloutRefused(f"bundle {bundle_version} is not being rolled out here; {now}")
    return walk


def _check(bundle_version: str, users_per_s: float) -> None:
    if not 0 < len(bundle_version.encode()) <= _MAX_VERSION_BYTES:
        raise RolloutRefused(
            f"bundle_version is {bundle_version!r}; it must have 1 to {_MAX_VERSION_BYTES} bytes, as `gemstream bundle "
            "show` says it"
        )
    if users_per_s <= 0:
        raise RolloutRefused(f"the rate is {users_per_s:g} users/s; it must be above 0")


def _put(batch: Batch, rollout: Walk) -> None:
    batch.put(Family.SYSTEM, keys.ROLLOUT_KEY, rollout.encode())
