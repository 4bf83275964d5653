"""Reads every record of a partition's database and compares it with what the others say; names what is wrong."""

from dataclasses import dataclass, field

from state import keys
from state.arrivals import Hole, Position
from state.bundle_rollout import read_bundles
from state.chunk_codec import decode_rows
from state.errors import CorruptValue, StateError, UnknownFormat
from state.forgotten_codec import decode_forgotten
from state.head_codec import decode_head, has_history
from state.key_value_store import Family, KeyValueStore
from state.poll_batch import read_num_users
from state.segments import HistoryConfig
from state.store_format import read_format
from state.summary_codec import decode_summary
from state.user_records import by_user
from state.user_state import UserMeta

_KIND_NAMES = {
    keys.HEAD: "head",
    keys.TAIL: "tail block",
    keys.CHUNK: "chunk",
    keys.SUMMARY: "summary",
    keys.FORGOTTEN: "forgotten items",
}


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong."""

    user: str | None
    """None for what belongs to no user."""
    record: str
    """The kind of the record, with its position in the history or its bundle."""
    reason: str

    @property
    def text(self) -> str:
        """For people."""
        whose = "" if self.user is None else f"user {self.user!r}, "
        return f"{whose}{self.record}: {self.reason}"


@dataclass
class StoreReport:
    """What was read, and what is wrong with it."""

    users: int = 0
    records: int = 0
    damage: list[Damage] = field(default_factory=list)


def check_store(database: KeyValueStore, history: HistoryConfig, partition: int) -> StoreReport:
    """Read everything. Damage ends up in the report; raises StoreError when the database cannot be read at all."""
    report = StoreReport()
    _check_system(database, history, partition, report)
    last_user, num_users = None, 0
    try:
        for user, records in by_user(database):
            last_user = _shown(user)
            report.users += 1
            report.records += len(records)
            num_users += any(rest == keys.HEAD and has_history(head) for rest, head in records)
            report.damage += check_user(last_user, records, history)
    except CorruptValue as error:
        where = "the first user" if last_user is None else f"user {last_user!r}"
        report.damage.append(Damage(last_user, f"everything behind {where}", str(error)))
        return report
    if num_users != read_num_users(database):
        reason = f"says {read_num_users(database)}, there are {num_users}"
        report.damage.append(Damage(None, "the number of users", reason))
    return report


def check_user(
    user_id: str, records: list[tuple[bytes, bytes]], history: HistoryConfig
) -> list[Damage]:
    """What is wrong with the records of one user, as state/user_records.py's `by_user` gives them."""
    return _UserCheck(user_id, history).check(records)


def _check_system(
    database: KeyValueStore, history: HistoryConfig, partition: int, report: StoreReport
) -> None:
    try:
        stored = read_format(database)
        if stored is None:
            raise CorruptValue("is missing")
        stored.check(history, partition)
    except StateError as error:
        report.damage.append(Damage(None, "format", str(error)))
    try:
        (position,) = database.get(Family.SYSTEM, [keys.POSITION_KEY])
        if position is not None:
            Position.decode(position)
        for _, value in database.scan(Family.SYSTEM, *keys.hole_range()):
            Hole.decode(value)
        for key, _ in database.scan(Family.SYSTEM, *keys.dirty_range()):
            keys.dirty_user(key).decode()
        read_bundles(database)
    except (CorruptValue, UnicodeDecodeError) as error:
        report.damage.append(Damage(None, "position, hole, dirty mark or rollout", str(error)))


class _UserCheck:
    """The records of one user, in key order: head, tail blocks, chunks, summaries, forgotten items."""

    def __init__(self, user: str, history: HistoryConfig) -> None:
        self._user = user
        self._history = history
        self._meta: UserMeta | None = None
        self._num_open = 0
        self._spans: dict[bytes, list[tuple[int, int | None]]] = {keys.TAIL: [], keys.CHUNK: []}
        self._damage: list[Damage] = []

    def check(self, records: list[tuple[bytes, bytes]]) -> list[Damage]:
        """What is wrong with them."""
        broken = False
        for rest, value in records:
            try:
                self._read(rest, value)
            except (CorruptValue, UnknownFormat) as error:
                self._add(_record_name(rest), str(error))
                broken = True
        if self._meta is None:
            if not broken:
                self._add("head", "is missing, though there are other records of the user")
        else:
            self._compare(self._meta)
        return self._damage

    def _read(self, rest: bytes, value: bytes) -> None:
        kind = rest[:1]
        if kind == keys.HEAD:
            self._meta, open_rows = decode_head(value)
            self._num_open = len(open_rows)
        elif kind in self._spans:
            start = int.from_bytes(rest[1:], "big")
            self._spans[kind].append((start, None))  # it is there, and where it ends is not known
            self._spans[kind][-1] = (start, start + len(decode_rows(value)))
        elif kind == keys.SUMMARY:
            summary = decode_summary(value, rest[1:].decode())
            boundary = self._meta.lifecycle_boundary if self._meta else summary.boundary
            if summary.boundary > boundary:
                raise CorruptValue(
                    f"ends at {summary.boundary}, behind the lifecycle boundary {boundary}"
                )
        elif kind == keys.FORGOTTEN:
            decode_forgotten(value)
        else:
            raise UnknownFormat(f"this release knows no records of kind {kind.hex()}")

    def _compare(self, meta: UserMeta) -> None:
        ordered = 0 <= meta.first_position <= meta.tail_start <= meta.length
        if not ordered or meta.lifecycle_boundary > meta.tail_start:
            self._add(
                "head",
                f"says first position {meta.first_position}, lifecycle boundary {meta.lifecycle_boundary}, "
                f"tail start {meta.tail_start}, length {meta.length}, which do not follow each other",
            )
            return
        self._compare_spans(keys.CHUNK, meta.first_position, meta.tail_start)
        self._compare_spans(keys.TAIL, meta.tail_start, meta.length - self._num_open)
        if len(self._spans[keys.TAIL]) != meta.tail_blocks:
            self._add(
                "head",
                f"says {meta.tail_blocks} tail blocks, and there are {len(self._spans[keys.TAIL])}",
            )

    def _compare_spans(self, kind: bytes, start: int, end: int) -> None:
        """Blocks follow each other from `start` to `end`; chunks have one length."""
        name = _KIND_NAMES[kind]
        expected: int | None = start
        for block_start, block_end in self._spans[kind]:
            if expected is not None and block_start != expected:
                self._add(
                    f"{name} {expected}",
                    f"is not there: the next {name} begins at position {block_start}",
                )
            length = self._history.chunk_len if block_end is None else block_end - block_start
            if kind == keys.CHUNK and length != self._history.chunk_len:
                self._add(
                    f"{name} {block_start}",
                    f"holds {length} interactions, not {self._history.chunk_len}",
                )
            expected = block_end
        if expected is not None and expected != end:
            self._add(
                f"{name} {min(expected, end)}",
                f"the {name}s end at position {expected}, the head says {end}",
            )

    def _add(self, record: str, reason: str) -> None:
        self._damage.append(Damage(self._user, record, reason))


def _record_name(rest: bytes) -> str:
    kind, suffix = rest[:1], rest[1:]
    name = _KIND_NAMES.get(kind, "record")
    if kind in (keys.TAIL, keys.CHUNK):
        return f"{name} {int.from_bytes(suffix, 'big')}"
    if kind == keys.SUMMARY:
        return f"{name} of bundle {_shown(suffix)}"
    return name


def _shown(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
