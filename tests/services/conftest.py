"""One bundle, trained for a few steps, for all tests of services that need a real one."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.progress import Progress

from model.training.train import train
from tests.model.worlds import SMALL, make_event_log


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    train(make_event_log(), None, replace(SMALL, max_steps=3), path, Progress(disable=True))
    return path
