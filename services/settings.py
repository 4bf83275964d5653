"""All settings of a deployment: one TOML file, checked whole; unknown keys are errors."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from model.engine_config import EngineConfig
from model.limits import check_limits
from services.batcher import BatchingConfig
from services.candidate_config import CandidateConfig
from services.catalogue_config import CatalogueConfig
from services.credentials import AdminConfig, TlsConfig
from services.errors import SettingsError
from services.generation import CachesConfig
from services.toml_config import read_toml, structure
from services.tracing import TracingConfig
from state.backfill_config import BackfillsConfig
from state.checkpoint_config import CheckpointsConfig
from state.errors import ConfigError
from state.rocks_config import RocksConfig
from state.segments import HistoryConfig
from stream.consumer import ConsumerConfig
from stream.decode import DecoderConfig
from stream.owed_summaries import DispatchConfig
from stream.topics import TopicsConfig
from stream.trending_counts import TrendingConfig
from stream.watchdog import LivenessConfig

KAFKA_VARIABLE = "GEMSTREAM_KAFKA"
_MAX_THREADS = 256
"""Of a role's network: OpenMP does not survive any number."""


@dataclass(frozen=True, kw_only=True)
class StateNodeConfig:
    """Where a state node listens, and how workers reach it."""

    listen: str = "127.0.0.1:50051"
    advertise: str | None = None
    """host:port for other machines; the listening address when not given."""
    metrics_listen: str = "127.0.0.1:9101"
    """Serves /metrics, /healthz and /readyz over HTTP; port 0 takes any, an empty address serves nothing."""
    erase_interval_s: float = 10.0
    """How soon a deleted user leaves the files on disk, too."""
    max_cached_users: int = 131_072
    """Users whose newest interactions are kept in memory for the next poll, about 700 bytes each; over all partitions."""

    def __post_init__(self) -> None:
        """Check the addresses and the interval."""
        _check_address("listen", self.listen)
        if self.advertise is not None:
            _check_address("advertise", self.advertise)
        _check_metrics_address(self.metrics_listen)
        if self.erase_interval_s <= 0:
            raise ConfigError(f"erase_interval_s is {self.erase_interval_s}; it must be above 0")
        if self.max_cached_users < 0:
            raise ConfigError(f"max_cached_users is {self.max_cached_users}; it must be at least 0")

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self.advertise or self.listen


@dataclass(frozen=True, kw_only=True)
class InferenceNodeConfig:
    """Where an inference node listens, and how it works."""

    listen: str = "127.0.0.1:50052"
    state_address: str | None = None
    """The only state node; without it, every partition's owner is found through Kafka."""
    state_timeout_s: float = 1.0
    """After that a request is answered with popular items, marked as such."""
    beam_width: int = 32
    max_per_first_code: int | None = None
    """Diversity: items of an answer that share their SID's first code; None: any number."""
    exact_search: bool = False
    """Search ever wider until no other item can be better; takes up to a pass over the whole catalogue."""
    log_requests: bool = False
    """A line of JSON per answer, with user id, surface, context and items."""
    num_threads: int = 2
    little_history: int = 5
    """A user with fewer interactions gets a part of the answer from what trends."""
    metrics_listen: str = "127.0.0.1:9102"
    """As a state node's."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    caches: CachesConfig = field(default_factory=CachesConfig)
    candidate: CandidateConfig = field(default_factory=CandidateConfig)

    def __post_init__(self) -> None:
        """Check addresses and limits."""
        _check_address("listen", self.listen)
        if self.state_address is not None:
            _check_address("state_address", self.state_address)
        _check_metrics_address(self.metrics_listen)
        if not 1 <= self.beam_width <= 1_000:
            raise ConfigError(f"beam_width is {self.beam_width}; it must be 1 to 1000")
        if self.max_per_first_code is not None and self.max_per_first_code < 1:
            raise ConfigError(
                f"max_per_first_code is {self.max_per_first_code}; it must be at least 1"
            )
        if self.max_per_first_code is not None and self.exact_search:
            raise ConfigError(
                "max_per_first_code and exact_search are both set: the best items and diverse ones exclude one another; drop one"
            )
        check_limits(self, "num_threads", least=1, most=_MAX_THREADS)
        if self.little_history < 0:
            raise ConfigError(f"little_history is {self.little_history}; it must be at least 0")
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
    metrics_listen: str = "127.0.0.1:9103"
    """As a state node's."""
    candidate_metrics_listen: str = "127.0.0.1:9105"
    """The same, of a worker for the candidate."""
    only_rollout: bool = False
    """Take jobs of the bundle's rollout alone."""

    def __post_init__(self) -> None:
        """Check the limits."""
        check_limits(self, "num_threads", least=1, most=_MAX_THREADS)
        for name in ("max_batch", "concurrency", "max_chunks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        _check_metrics_address(self.metrics_listen)
        _check_metrics_address(self.candidate_metrics_listen)


@dataclass(frozen=True, kw_only=True)
class TrendingRoleConfig(TrendingConfig):
    """What a process that counts needs besides."""

    metrics_listen: str = "127.0.0.1:9104"
    """As a state node's."""

    def __post_init__(self) -> None:
        """Check the limits and the address."""
        super().__post_init__()
        _check_metrics_address(self.metrics_listen)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything the roles need; each section belongs to the module that uses it."""

    bootstrap: str | None = None
    """Kafka's address; without one, a local broker is used."""
    data_dir: Path = Path("data")
    bundle: Path = Path("bundle")
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    rocks: RocksConfig = field(default_factory=RocksConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    backfills: BackfillsConfig = field(default_factory=BackfillsConfig)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    liveness: LivenessConfig = field(default_factory=LivenessConfig)
    state_node: StateNodeConfig = field(default_factory=StateNodeConfig)
    inference_node: InferenceNodeConfig = field(default_factory=InferenceNodeConfig)
    catalogue: CatalogueConfig = field(default_factory=CatalogueConfig)
    compression_worker: CompressionWorkerConfig = field(default_factory=CompressionWorkerConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    trending: TrendingRoleConfig = field(default_factory=TrendingRoleConfig)


def load_settings(path: Path | None, overrides: dict[str, Any]) -> Settings:
    """Read `path`, or the defaults; then the environment; then `overrides` that are not None.

    Relative paths in the file are taken from the file's directory. Raises SettingsError.
    """
    settings = Settings() if path is None else _read_settings(path)
    if bootstrap := os.environ.get(KAFKA_VARIABLE):
        settings = replace(settings, bootstrap=bootstrap)
    given = {name: value for name, value in overrides.items() if value is not None}
    return replace(settings, **given)


def for_candidate(settings: Settings) -> Settings:
    """The settings of a compression worker for the candidate: its bundle, its jobs alone, a group of its own.

    Raises SettingsError where there is no candidate.
    """
    bundle = settings.inference_node.candidate.bundle
    if bundle is None:
        raise SettingsError("there is no candidate: set `bundle` in [inference_node.candidate]")
    worker = settings.compression_worker
    worker = replace(
        worker,
        group=f"{worker.group}-candidate",
        metrics_listen=worker.candidate_metrics_listen,
        only_rollout=True,
    )
    return replace(settings, bundle=bundle, compression_worker=worker)


def _read_settings(path: Path) -> Settings:
    document = read_toml(path)
    document.pop("train", None)  # read by `gemstream train` alone
    settings = structure(path, document, Settings)
    return replace(
        settings,
        data_dir=path.parent / settings.data_dir,
        bundle=path.parent / settings.bundle,
        inference_node=replace(
            settings.inference_node,
            candidate=settings.inference_node.candidate.relative_to(path.parent),
        ),
        checkpoints=settings.checkpoints.relative_to(path.parent),
        tls=settings.tls.relative_to(path.parent),
        admin=settings.admin.relative_to(path.parent),
        backfills=settings.backfills.relative_to(path.parent),
    )


def _check_address(name: str, address: str) -> None:
    if not _is_address(address, lowest_port=1):
        raise ConfigError(
            f"{name} is {address!r}; it must be host:port with a port of 1 to 65535, such as 127.0.0.1:50051"
        )


def _check_metrics_address(address: str) -> None:
    if address and not _is_address(address, lowest_port=0):
        raise ConfigError(
            f"metrics_listen is {address!r}; it must be host:port such as 127.0.0.1:9101, with port 0 for any free one, "
            'or "" for none'
        )


def _is_address(address: str, *, lowest_port: int) -> bool:
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    return bool(host) and is_number and lowest_port <= int(port) <= 65_535
