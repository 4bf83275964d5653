"""The errors of this package; foreign exceptions become one of these at the seam.

StateError
├── InvalidInteraction      a producer's mistake: the interaction cannot be kept
├── ConfigError             a setting outside its limits
├── CorruptValue            stored bytes that fail their check
│   ├── DamagedUsers        of single users: the others go on
│   └── StoreDamaged        files of a database are damaged or gone
├── UnknownFormat           bytes written by a release this one does not know
├── RolloutRefused          a step of a bundle's rollout that is not its turn
├── StaleDelta              a delta of a user that does not follow what the reader has
├── CheckpointError         a checkpoint cannot be taken, read or used
│   ├── RepositoryUnavailable   the place where checkpoints are kept cannot be reached, read or written
│   └── DamagedCheckpoint   parts of it are missing, or are not what was written
│       └── NoUsableCheckpoint  a partition has no store and all of its checkpoints are damaged; also a CorruptValue
└── StoreError              the database cannot be opened, read or written
    ├── StoreLocked         another process has it open
    ├── StoreClosed         this process closed it, or never had it
    ├── StoreFull           the disk took no more: free space, start again
    └── StoreNotWritable    its directory is read-only, somebody else's, or none
"""

from collections.abc import Mapping


class StateError(Exception):
    """Anything this package raises on purpose."""


class InvalidInteraction(StateError):
    """An interaction breaks the producers' contract (protos/interaction.proto)."""


class ConfigError(StateError):
    """A setting is outside its limits, or differs from the one the store was made with."""


class CorruptValue(StateError):
    """Stored bytes fail their checksum or length check."""


class DamagedUsers(CorruptValue):
    """Values of single users are damaged; nothing is wrong with the others of the partition."""

    def __init__(self, partition: int, reasons: Mapping[str, str]) -> None:
        """`reasons` by user id."""
        user_id, reason = next(iter(reasons.items()))
        others = f" (and {len(reasons) - 1} users more)" if len(reasons) > 1 else ""
        super().__init__(
            f"partition {partition}, user {user_id!r}: {reason}{others}; docs/damage.md says what can be done"
        )
        self.reasons = reasons


class StoreDamaged(CorruptValue):
    """Files of a database are damaged or gone: this concerns all of its users."""


class UnknownFormat(StateError):
    """Stored bytes carry a format version this release cannot read."""


class RolloutRefused(StateError):
    """What is asked of a bundle's rollout is not its turn; nothing has changed."""


class StaleDelta(StateError):
    """A delta of a user leaves out what the reader does not have; read the user whole."""


class CheckpointError(StateError):
    """A checkpoint cannot be taken, read or used; the message says which and why."""


class RepositoryUnavailable(CheckpointError):
    """The place where checkpoints are kept cannot be reached, read or written now."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint lacks a part, or one of its parts is not what was written."""


class NoUsableCheckpoint(DamagedCheckpoint, CorruptValue):
    """A partition has no store here, and none of its checkpoints is usable; a person must decide."""


class StoreError(StateError):
    """The database cannot be opened, read or written."""


class StoreLocked(StoreError):
    """Another process holds the database open."""


class StoreClosed(StoreError):
    """The database is closed: its partition was given away."""


class StoreFull(StoreError):
    """The disk is full, or a quota or file size limit is reached; what was being written does not count."""


class StoreNotWritable(StoreError):
    """The directory is read-only, somebody else's, or no directory; a person must change that."""
