"""`gemstream run`: one role in the foreground, as an ordinary process."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import BootstrapOption, BundleOption, ConfigOption, DataDirOption
from services.cli.output import CommandError
from services.credentials import server_credentials
from services.errors import SettingsError
from services.local_broker import find_bootstrap
from services.settings import for_candidate, load_settings
from services.supervisor import EX_CONFIG

_CANDIDATE = Path("candidate")
"""A worker's --bundle that names the settings' candidate; a directory of that name is to be given as an absolute path."""


class Role(StrEnum):
    """The kinds of process."""

    STATE_NODE = "state-node"
    COMPRESSION_WORKER = "compression-worker"
    INFERENCE_NODE = "inference-node"
    TRENDING = "trending"


def run(
    role: Annotated[Role, typer.Argument(help="Which role.")],
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    data_dir: DataDirOption = None,
    bundle: BundleOption = None,
    accept_hole: Annotated[
        bool,
        typer.Option(
            help="State node: where retention removed records that were never applied, record the hole and go on."
        ),
    ] = False,
    accept_log_damage: Annotated[
        bool,
        typer.Option(
            help="State node: where a store's write-ahead log is damaged, keep what precedes the damage and go on."
        ),
    ] = False,
) -> None:
    r"""Run one role until it is told to stop.

    `compression-worker --bundle candidate` compresses with the bundle in \[inference_node.candidate], for its rollout alone.
    """
    from dataclasses import replace

    from services.process import run_role

    try:
        is_candidate = bundle == _CANDIDATE and role is Role.COMPRESSION_WORKER
        settings = load_settings(
            config,
            {
                "bootstrap": bootstrap,
                "data_dir": data_dir,
                "bundle": None if is_candidate else bundle,
            },
        )
        settings = for_candidate(settings) if is_candidate else settings
        if accept_hole:
            settings = replace(settings, consumer=replace(settings.consumer, accept_hole=True))
        if accept_log_damage:
            settings = replace(settings, rocks=replace(settings.rocks, accept_log_damage=True))
        if role in (Role.STATE_NODE, Role.INFERENCE_NODE):
            server_credentials(settings.tls, settings.admin)  # before anything is waited for
        if role is not Role.INFERENCE_NODE or settings.inference_node.state_address is None:
            settings = replace(settings, bootstrap=find_bootstrap(settings))
    except SettingsError as error:
        raise CommandError(str(error), EX_CONFIG) from error
    raise typer.Exit(run_role(role.value, settings))
