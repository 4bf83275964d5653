"""`gemstream up`: every role on this machine, and a broker if none is given."""

import asyncio
import logging
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import BootstrapOption, BundleOption, ConfigOption, DataDirOption
from services.cli.output import people
from services.cli.run import Role
from services.settings import Settings, load_settings


def up(
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    data_dir: DataDirOption = None,
    bundle: BundleOption = None,
    roles: Annotated[
        list[Role] | None, typer.Option("--role", help="Only these roles; may be repeated.")
    ] = None,
) -> None:
    """Run all roles until Ctrl-C; a role that dies is started again.

    Without an address of Kafka the local broker is used; if none runs, one is started and stopped with the roles.
    """
    from services.deployment import check_before_start, run_roles

    settings = load_settings(
        config, {"bootstrap": bootstrap, "data_dir": data_dir, "bundle": bundle}
    )
    wanted = [role.value for role in roles or list(Role)]
    check_before_start(settings, wanted)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s up %(message)s"
    )
    with ExitStack() as stack:
        settings = _with_broker(settings, stack)
        people.print(f"Kafka at {settings.bootstrap}; starting {', '.join(wanted)}")
        asyncio.run(run_roles(settings, _flags(settings, config), wanted, people.print))


def _with_broker(settings: Settings, stack: ExitStack) -> Settings:
    from services.detached_kafka import running_kafka
    from services.local_kafka import start_kafka

    if settings.bootstrap is not None:
        return settings
    running = running_kafka()
    if running is not None:
        return replace(settings, bootstrap=running.bootstrap)
    people.print("Starting Kafka (the first time fetches 43 MB of jars) ...")
    kafka = start_kafka(settings.data_dir / "kafka")
    stack.callback(kafka.stop)
    return replace(settings, bootstrap=kafka.bootstrap)


def _flags(settings: Settings, config: Path | None) -> list[str]:
    """What a child needs to come to the same settings."""
    flags = ["--bootstrap", str(settings.bootstrap)]
    flags += ["--data-dir", str(settings.data_dir), "--bundle", str(settings.bundle)]
    return flags if config is None else [*flags, "--config", str(config)]
