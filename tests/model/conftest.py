"""One event log and one bundle, trained for a few steps, for all tests of the model."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from rich.progress import Progress

from model.bundle import Bundle, load_bundle
from model.training.train import train
from state.event_log import EventLog
from tests.model.worlds import RECENCY, SCORING, SMALL, make_event_log


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors are tiny here: a second thread only waits, worst of all on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def event_log() -> EventLog:
    return make_event_log()


@pytest.fixture(scope="session")
def bundle_path(event_log: EventLog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "small"
    train(event_log, None, SMALL, path, Progress(disable=True))
    return path


@pytest.fixture(scope="session")
def bundle(bundle_path: Path) -> Bundle:
    return load_bundle(bundle_path)


@pytest.fixture(scope="session")
def scoring(event_log: EventLog, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose network scores items."""
    path = tmp_path_factory.mktemp("scoring") / "bundle"
    train(event_log, None, SCORING, path, Progress(disable=True))
    return load_bundle(path)


@pytest.fixture(scope="session")
def recency(event_log: EventLog, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose network reads the first codes of the nearer segments."""
    path = tmp_path_factory.mktemp("recency") / "bundle"
    train(event_log, None, RECENCY, path, Progress(disable=True))
    bundle = load_bundle(path)
    module = bundle.network.code_recency
    assert module is not None
    torch.nn.init.normal_(module.weights.weight, std=0.2)  # so few steps leave them near zero
    return bundle


@pytest.fixture
def log_path(event_log: EventLog, tmp_path: Path) -> Path:
    path = tmp_path / "events.parquet"
    users = [event_log.user_ids[i] for i in event_log.user_index]
    columns = {name: event_log.rows[name] for name in ("item_id", "event_time_ms", "tag")}
    pyarrow.parquet.write_table(pa.table({"user_id": users, **columns}), path)
    return path
