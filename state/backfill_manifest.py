"""What one partition of a backfill consists of, as JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from state.checkpoint_manifest import StoredFile
from state.errors import ConfigError, DamagedCheckpoint, UnknownFormat
from state.segments import HistoryConfig
from state.store_format import history_lengths

FORMAT_VERSION = 1

Content = Literal["histories", "summaries"]


@dataclass(frozen=True, kw_only=True)
class BackfillManifest:
    """One partition. It is written last: a partition of a backfill exists if and only if it does."""

    backfill: str
    """The backfill's name: it says what it was made of, so that the same made twice is the same backfill."""
    content: Content
    """Whole histories with their summaries, or summaries alone, for users that are there."""
    topic: str
    partition: int
    num_partitions: int
    history: dict[str, int]
    bundle_version: str | None
    """Of the summaries; None when there are none."""
    created_at_ms: int
    users: int
    interactions: int
    summaries: int
    user_files: tuple[StoredFile, ...]
    """Sorted files of family `users`; their keys may lie among each other's."""
    system_files: tuple[StoredFile, ...] = ()
    """Of family `system`: dirty marks."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files."""
        return self.user_files + self.system_files

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(file.num_bytes for file in self.files)

    def check(self, history: HistoryConfig, num_partitions: int) -> None:
        """Raises ConfigError unless it was made for the same histories and partitions."""
        made, wanted = (
            (self.history, self.num_partitions),
            (history_lengths(history), num_partitions),
        )
        if made != wanted:
            raise ConfigError(
                f"backfill {self.backfill} was made for history and number of partitions {made}, the configuration "
                f"says {wanted}; make it again with this configuration"
            )

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, what: str) -> Self:
        """Inverse of encode. Raises UnknownFormat or DamagedCheckpoint, naming `what`."""
        try:
            document: dict[str, Any] = json.loads(data)
            version = document.pop("format_version")
            if version != FORMAT_VERSION:
                raise UnknownFormat(
                    f"{what} has format version {version}; this release reads version {FORMAT_VERSION}"
                )
            for name in ("user_files", "system_files"):
                document[name] = tuple(StoredFile(**file) for file in document[name])
            return cls(**document)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise DamagedCheckpoint(f"{what} cannot be read: {error!r}; make it again") from error
