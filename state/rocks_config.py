"""Memory and files of RocksDB databases, apart from the driver so that settings load without it."""

from dataclasses import dataclass

from state.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RocksConfig:
    """Memory and files of a node's databases, one per partition."""

    block_cache_bytes: int = 256 << 20
    """Shared by all databases."""
    memtable_bytes: int = 128 << 20
    """All memtables of all databases together."""
    bloom_bits_per_key: int = 10
    max_open_files: int = 256
    """Per database."""
    accept_log_damage: bool = False
    """Where a write-ahead log is damaged before its end: keep what precedes the damage and go on, not stop."""

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("block_cache_bytes", "memtable_bytes"):
            if getattr(self, name) < 1 << 20:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1 MiB")
        if self.max_open_files < 16:
            raise ConfigError(f"max_open_files is {self.max_open_files}; it must be at least 16")
