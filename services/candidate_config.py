"""Which bundle an inference node serves beside its primary: `[inference_node.candidate]`."""

from dataclasses import dataclass, replace
from pathlib import Path

from state.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CandidateConfig:
    """Raises ConfigError for a share that is none."""

    bundle: Path | None = None
    """None: there is no candidate until `gemstream bundle load`."""
    share: float = 0.1
    """Of users, 0 to 1."""

    def __post_init__(self) -> None:
        """Check the share."""
        check_share(self.share)

    def relative_to(self, directory: Path) -> "CandidateConfig":
        """A relative path taken from `directory`."""
        return self if self.bundle is None else replace(self, bundle=directory / self.bundle)


def check_share(share: float) -> None:
    """Raises ConfigError."""
    if not 0 <= share <= 1:
        raise ConfigError(f"share is {share:g}; it must be 0 to 1")
