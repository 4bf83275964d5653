"""All settings of a deployment: one TOML file, checked whole; unknown keys are errors."""

import os
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cattrs

from services.errors import SettingsError
from state.errors import ConfigError
from state.rocks_config import RocksConfig
from state.segments import HistoryConfig
from stream.compression_jobs import DispatchConfig
from stream.consumer import ConsumerConfig
from stream.decode import DecoderConfig
from stream.topics import TopicsConfig

KAFKA_VARIABLE = "GEMSTREAM_KAFKA"


@dataclass(frozen=True, kw_only=True)
class StateNodeConfig:
    """Where a state node listens, and how workers reach it."""

    listen: str = "127.0.0.1:50051"
    advertise: str | None = None
    """host:port for other machines; the listening address when not given."""


@dataclass(frozen=True, kw_only=True)
class InferenceNodeConfig:
    """Where an inference node listens, and how it works."""

    listen: str = "127.0.0.1:50052"
    state_address: str = "127.0.0.1:50051"
    state_timeout_s: float = 1.0
    """After that a request is answered with popular items, marked as such."""
    beam_width: int = 32
    num_threads: int = 2

    def __post_init__(self) -> None:
        """Check the limits."""
        if not 1 <= self.beam_width <= 1_000:
            raise ConfigError(f"beam_width is {self.beam_width}; it must be 1 to 1000")
        if self.num_threads < 1:
            raise ConfigError(f"num_threads is {self.num_threads}; it must be at least 1")
        if self.state_timeout_s <= 0:
            raise ConfigError(f"state_timeout_s is {self.state_timeout_s}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class CompressionWorkerConfig:
    """How a compression worker takes jobs."""

    group: str = "gemstream-compression"
    max_batch: int = 64
    batch_within_s: float = 0.2
    concurrency: int = 8
    """Users pulled from owners at the same time."""
    max_chunks: int = 64
    """Chunks pulled in one call; a longer way is gone in steps."""
    num_threads: int = 1

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("max_batch", "concurrency", "max_chunks", "num_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything the three roles need; each section belongs to the module that uses it."""

    bootstrap: str | None = None
    """Kafka's address; without one, a local broker is used."""
    data_dir: Path = Path("data")
    bundle: Path = Path("bundle")
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    rocks: RocksConfig = field(default_factory=RocksConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    state_node: StateNodeConfig = field(default_factory=StateNodeConfig)
    inference_node: InferenceNodeConfig = field(default_factory=InferenceNodeConfig)
    compression_worker: CompressionWorkerConfig = field(default_factory=CompressionWorkerConfig)


def load_settings(path: Path | None, overrides: dict[str, Any]) -> Settings:
    """Read `path`, or the defaults; then the environment; then `overrides` that are not None.

    Relative paths in the file are taken from the file's directory. Raises SettingsError.
    """
    settings = Settings() if path is None else _read_settings(path)
    if bootstrap := os.environ.get(KAFKA_VARIABLE):
        settings = replace(settings, bootstrap=bootstrap)
    given = {name: value for name, value in overrides.items() if value is not None}
    return replace(settings, **given)


def _read_settings(path: Path) -> Settings:
    try:
        document = tomllib.loads(path.read_text())
        settings = _strict_converter().structure(document, Settings)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise SettingsError(f"{path}: {error}") from error
    except cattrs.BaseValidationError as error:
        raise SettingsError(f"{path}: {'; '.join(_explain(error))}") from error
    return replace(
        settings,
        data_dir=path.parent / settings.data_dir,
        bundle=path.parent / settings.bundle,
    )


def _strict_converter() -> cattrs.Converter:
    """No silent conversion between types: 5.7 is no integer and "5" is no number."""
    converter = cattrs.Converter(forbid_extra_keys=True)

    def structure_exact(value: Any, kind: type) -> Any:
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"expected {kind.__name__}, found {value!r}")
        return kind(value)

    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, structure_exact)
    converter.register_structure_hook(Path, lambda value, _: Path(structure_exact(value, str)))
    return converter


def _explain(error: cattrs.BaseValidationError) -> list[str]:
    """One phrase per fault, with the path of its key."""

    def phrase(exception: BaseException, kind: type | None) -> str:
        if isinstance(exception, (ConfigError, TypeError)):
            return str(exception)
        return cattrs.v.format_exception(exception, kind)

    return cattrs.transform_error(error, format_exception=phrase)
