"""What a checkpoint consists of: its manifest, as JSON, beside which its files lie under their hashes."""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Self

from state.errors import DamagedCheckpoint, UnknownFormat

FORMAT_VERSION = 2
"""What version 1 does not have is written only where it says something: earlier releases read all other manifests."""
_SINCE_2 = ("damaged_users", "bundles_changed_at_ms")
_NAME = re.compile(r"(\d{20})-(\d+)")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint."""

    name: str
    num_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Check what could lead out of a directory. Raises ValueError."""
        if not _FILE_NAME.fullmatch(self.name) or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.name!r} with hash {self.sha256!r} is no file of a checkpoint")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint of one partition. The offset is also in the database; here it is to be found without opening it."""

    topic: str
    partition: int
    next_offset: int
    """The first offset that is not in it."""
    sequence: int
    """The database's count of writes."""
    created_at_ms: int
    history: dict[str, int]
    """The lengths that its histories were cut by."""
    files: tuple[StoredFile, ...]
    damaged_users: int = 0
    """Users who were quarantined (state/quarantine.py) when it was taken; since version 2."""
    bundles_changed_at_ms: int = 0
    """When an operator last changed which bundle is rolled out, or which are retired; since version 2."""

    @property
    def name(self) -> str:
        """Sorts by offset, then by time."""
        return f"{self.next_offset:020d}-{self.created_at_ms}"

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(file.num_bytes for file in self.files)

    def encode(self) -> bytes:
        """As JSON."""
        document = asdict(self)
        news = {name: document.pop(name) for name in _SINCE_2}
        version = FORMAT_VERSION if any(news.values()) else 1
        document |= news if version == FORMAT_VERSION else {}
        return json.dumps({"format_version": version, **document}, indent=1).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> Self:
        """Inverse of encode, for the manifest called `name`. Raises UnknownFormat or DamagedCheckpoint."""
        try:
            document: dict[str, Any] = json.loads(data)
            version = document.pop("format_version")
            if version not in range(1, FORMAT_VERSION + 1):
                raise UnknownFormat(
                    f"checkpoint {name} has format version {version}; this release reads versions 1 to {FORMAT_VERSION}"
                )
            document["files"] = tuple(StoredFile(**file) for file in document["files"])
            manifest = cls(**document)
        except KeyError as error:
            raise DamagedCheckpoint(
                f"checkpoint {name}: its manifest cannot be read: it has no {error}"
            ) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedCheckpoint(
                f"checkpoint {name}: its manifest cannot be read: {error}"
            ) from error
        if manifest.name != name:
            raise DamagedCheckpoint(
                f"checkpoint {name}: its manifest says that it is {manifest.name}; was it renamed?"
            )
        return manifest


def is_manifest_name(name: str) -> bool:
    """Whether `name` is one that a manifest gives itself."""
    return _NAME.fullmatch(name) is not None


def short_name(name: str) -> str:
    """The name without what it has for sorting, for people."""
    return f"{offset_of(name)}-{created_at_ms_of(name)}"


def offset_of(name: str) -> int:
    """The next offset of the checkpoint called `name`."""
    return int(name[:20])


def created_at_ms_of(name: str) -> int:
    """When the checkpoint called `name` was taken."""
    return int(name[21:])
