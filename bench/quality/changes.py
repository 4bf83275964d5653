"""Configurations of a training run by what differs from another one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model.training.config import TrainConfig

Changes = Mapping[str, Any]
"""Settings of TrainConfig by dotted name; "network.mid_term.top_k" names one."""


def configure(changes: Changes) -> TrainConfig:
    """The default configuration with some settings changed."""
    return with_changes(TrainConfig(), changes)


def with_changes(config: TrainConfig, changes: Changes) -> TrainConfig:
    """A configuration with some settings changed."""
    changed_config: Any = config
    for name, value in changes.items():
        changed_config = _changed(changed_config, name.split("."), value)
    assert isinstance(changed_config, TrainConfig)
    return changed_config


def _changed(config: Any, path: list[str], value: object) -> Any:
    first, *rest = path
    inner = _changed(getattr(config, first), rest, value) if rest else value
    return replace(config, **{first: inner})
