"""How an inference node follows the topic `items`: `[catalogue]`."""

from dataclasses import dataclass

from state.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CatalogueConfig:
    """Raises ConfigError for values out of range."""

    refresh_interval_s: float = 1.0
    """Pause between two builds of the catalogue; removals do not wait for it."""
    start_timeout_s: float = 60.0
    """A node that starts waits for all of the topic; after so long without progress it serves without the rest."""
    keep_versions: int = 32
    """How many versions a node keeps, the one it serves included, to go back to."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("refresh_interval_s", "start_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.keep_versions < 1:
            raise ConfigError(f"keep_versions is {self.keep_versions}; it must be at least 1")
