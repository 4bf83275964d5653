"""Where backfills lie, and how often a state node looks for new ones."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from state.checkpoint_config import check_uri, uri_relative_to
from state.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BackfillsConfig:
    """Histories and summaries that were made offline, for state nodes to take."""

    uri: str | None = None
    """A directory or bucket as for checkpoints, and it must exist; None: a node takes no backfills."""
    interval_s: float = 30.0
    """How often a running state node looks for new ones."""

    def __post_init__(self) -> None:
        """Check the limits, and that there is no secret in the address."""
        check_uri(self.uri)
        if self.interval_s <= 0:
            raise ConfigError(f"interval_s is {self.interval_s}; it must be above 0")

    def relative_to(self, directory: Path) -> Self:
        """The same, where a relative path in `uri` is one below `directory`."""
        return replace(self, uri=uri_relative_to(directory, self.uri))
