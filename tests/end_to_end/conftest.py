"""One bundle, trained for a few steps, for all tests of real processes."""

from pathlib import Path

import pytest
from rich.progress import Progress

from model.training.train import train
from tests.model.worlds import SMALL, make_event_log


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    train(make_event_log(), None, SMALL, path, Progress(disable=True))
    return path
