"""Where checkpoints are kept and for how long, apart from the storage library so that settings load without it."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from state.errors import ConfigError

_SECRETS = re.compile(r"^[a-z0-9+.-]+://[^/?]*@|[?&](access_key|secret_key|session_token)=", re.I)


@dataclass(frozen=True, kw_only=True)
class CheckpointsConfig:
    """Periodic checkpoints of a state node."""

    uri: str | None = None
    """A directory, or `s3://bucket/prefix?region=...&endpoint_override=host:port&scheme=http`; None takes none.

    It must exist. Credentials come from the environment (AWS_*) alone.
    """
    interval_s: float = 300.0
    """Per partition, from one to the next."""
    keep: int = 3
    """The newest so many per partition; besides, the newest without damaged users, which may be older."""
    max_age_s: float = 604_800.0
    """Older ones leave, too, save the newest: so the bytes of a deleted user leave where little happens."""

    def __post_init__(self) -> None:
        """Check the limits, and that there is no secret in the address."""
        check_uri(self.uri)
        for name in ("interval_s", "max_age_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.keep < 1:
            raise ConfigError(f"keep is {self.keep}; it must be at least 1")

    def relative_to(self, directory: Path) -> Self:
        """The same, where a relative path in `uri` is one below `directory`."""
        return replace(self, uri=uri_relative_to(directory, self.uri))


def check_uri(uri: str | None) -> None:
    """Raises ConfigError for an address that is empty or holds a secret."""
    if uri is not None and (not uri or _SECRETS.search(uri)):
        raise ConfigError(
            "uri is empty or holds credentials; give those in the environment: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )


def uri_relative_to(directory: Path, uri: str | None) -> str | None:
    """The same, where a relative path is one below `directory`."""
    return uri if uri is None or "://" in uri else str(directory / uri)
