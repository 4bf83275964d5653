"""Real processes: a state node with users of several lengths of life, and an inference node per beam width."""

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from bench.ingest.arena import Arena, console
from bench.ingest.log import START_MS, random_rows
from bench.ingest.records import encode
from bench.lag import GroupWatch
from bench.recommend.bundle import write_bundle
from bench.recommend.world import Sizes
from bench.state_node import StateNodeProcess
from model.bundle import Bundle
from model.compression import Compressor
from services.channels import Target
from services.clients import StateClient
from services.deployment import wait_until_serving
from services.ports import choose_ports
from services.supervisor import die_with_parent
from state.chunk_codec import decode_rows
from state.event_log import EventLog
from state.interaction import hash_events
from state.summary import Summary
from stream.topics import TopicsConfig

GROUP = "recommend"
_READY_WITHIN_S = 180.0
_APPLIED_WITHIN_S = 240.0
_STOP_WITHIN_S = 20.0
_STATE_TIMEOUT_S = 30.0
_MAX_CHUNKS = 512
_LOOK_EVERY_S = 0.005


class InferenceNodeProcess:
    """`gemstream run inference-node` on a directory of its own."""

    def __init__(self, directory: Path, world: "Nodes", sizes: Sizes, beam_width: int) -> None:
        """Start it; `wait` until it serves."""
        directory.mkdir(parents=True)
        ports = choose_ports([])
        self.address, self.metrics = (f"127.0.0.1:{port}" for port in ports)
        self._log = directory / "inference-node.log"
        config = directory / "gemstream.toml"
        config.write_text(
            f'bootstrap = "{world.arena.bootstrap}"\ndata_dir = "data"\nbundle = "{world.bundle.path}"\n'
            f"[topics]\nnum_partitions = {world.topics.num_partitions}\n"
            f'[inference_node]\nlisten = "{self.address}"\nmetrics_listen = "{self.metrics}"\n'
            f'state_address = "{world.state.address}"\nstate_timeout_s = {_STATE_TIMEOUT_S}\n'
            f"beam_width = {beam_width}\nnum_threads = {sizes.threads[0]}\n"
            f"[inference_node.batching]\nmax_batch = {sizes.max_batch}\n"
        )
        command = [sys.executable, "-m", "services.cli", "run", "inference-node"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                die_with_parent([*command, "--config", str(config)]), stdout=log, stderr=log
            )
        self.watched = psutil.Process(self._process.pid)

    def wait(self) -> None:
        """Return when it serves. Raises SystemExit with its log when it does not."""
        try:
            asyncio.run(asyncio.wait_for(wait_until_serving(Target(self.address)), _READY_WITHIN_S))
        except TimeoutError as error:
            raise SystemExit(f"an inference node is not ready:\n{self.log_text}") from error

    @property
    def log_text(self) -> str:
        """What it said so far."""
        return self._log.read_text()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, eq=False)
class Nodes:
    """What runs, and who is known to it."""

    arena: Arena
    topics: TopicsConfig
    state: StateNodeProcess
    bundle: Bundle
    inference: dict[int, InferenceNodeProcess]
    """By beam width."""
    users: Mapping[int, Sequence[str]]
    """By length of life."""

    async def wait_until_applied(self, num_events: int) -> None:
        """Until the state node has applied so many events of the topic."""
        give_up_at = time.monotonic() + _APPLIED_WITHIN_S
        async with GroupWatch(self.arena.bootstrap, self.topics, GROUP) as group:
            while sum(await group.committed()) < num_events:
                if time.monotonic() > give_up_at:
                    raise SystemExit(
                        f"{num_events} events were not applied in {_APPLIED_WITHIN_S} s"
                    )
                await asyncio.sleep(_LOOK_EVERY_S)


@contextmanager
def open_nodes(arena: Arena, sizes: Sizes) -> Iterator[Nodes]:
    """Everything up, histories folded, summaries of all lifecycle segments there."""
    topics = arena.topics("recommend")
    bundle = write_bundle(sizes, sizes.catalogues[0], arena.directory / "bundle")
    users = {
        life: [f"life-{life}-{number}" for number in range(sizes.users_per_life)]
        for life in sizes.lives
    }
    with ExitStack() as stack:
        directory = arena.directory / "state"
        state = StateNodeProcess(directory, arena.bootstrap, topics, GROUP)
        stack.enter_context(state)
        nodes = Nodes(arena, topics, state, bundle, {}, users)
        for beam_width in sizes.beams:
            directory = arena.directory / f"beam-{beam_width}"
            node = InferenceNodeProcess(directory, nodes, sizes, beam_width)
            stack.callback(node.stop)
            nodes.inference[beam_width] = node
        log = make_lives(users, len(bundle.catalogue))
        arena.fill(topics, encode(log, topics.num_partitions))
        with console.status("folding, compressing, compiling"):
            asyncio.run(nodes.wait_until_applied(len(log.rows)))
            asyncio.run(_compress(nodes))
            for node in nodes.inference.values():
                node.wait()
        yield nodes


def make_lives(users: Mapping[int, Sequence[str]], num_items: int) -> EventLog:
    """Users of one length of life have lived alike: what they did is compressed once."""
    user_ids = [user for of_life in users.values() for user in of_life]
    lengths = [life for life, of_life in users.items() for _ in of_life]
    rows = random_rows(START_MS + np.arange(max(users)), np.random.default_rng(1))
    rows["item_id"] = 1 + rows["item_id"] % num_items
    joined = np.concatenate([rows[:length] for length in lengths])
    index = np.repeat(np.arange(len(user_ids)), lengths)
    return make_event_log(user_ids, index, joined, "life")


def make_event_log(
    user_ids: list[str], index: npt.NDArray[np.int64], rows: npt.NDArray[np.void], prefix: str
) -> EventLog:
    """Rows of these users with event ids that begin with `prefix`."""
    event_ids = [f"{prefix}-{number}" for number in range(len(rows))]
    rows["event_hash"] = hash_events(event_ids, rows["event_time_ms"])
    return EventLog(user_ids, index, event_ids, rows)


async def _compress(nodes: Nodes) -> None:
    """What a compression worker would do, once per length of life."""
    compressor, version = Compressor(nodes.bundle), nodes.bundle.version
    async with StateClient(nodes.state.address, _STATE_TIMEOUT_S) as client:
        for of_life in nodes.users.values():
            summary: Summary | None = None
            for user in of_life:
                rolled = await client.read_rolled(user, version, 1 if summary else _MAX_CHUNKS)
                if not rolled.chunks:
                    break  # no lifecycle segment
                if summary is None:
                    chunks = [decode_rows(chunk) for chunk in rolled.chunks]
                    end = rolled.end_boundary
                    summary = await asyncio.to_thread(compressor.roll, None, chunks, end, 0)
                stored, complete = await client.put_summary(
                    user, dataclasses.replace(summary), 0, rolled.epoch
                )
                assert stored, f"the summary of {user} was refused"
                assert complete, f"the summary of {user} ends before its lifecycle segment"
