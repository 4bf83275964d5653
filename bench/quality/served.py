"""Served = offline: the same histories through Kafka, RocksDB and gRPC, beside the offline ranking of the same moments."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.quality.complete_journey import load_task
from bench.quality.events import make_event_log
from bench.quality.gemstream_ranker import Gemstream, rank
from bench.quality.task import Budget
from bench.report import write_report
from examples.complete_journey.replay import TIMEOUT_S, replay
from examples.complete_journey.roles import Deployment, deployment
from model.bundle import Bundle
from model.training.histories import Histories, Index
from protos.recommender_pb2 import SOURCE_PERSONAL, Degradation, RecommendRequest
from services import clients
from services.channels import Target
from state.event_log import EventLog
from state.interaction import INTERACTION
from state.segments import HistoryConfig

_GIVEN = [name for name in INTERACTION.names or () if name != "event_hash"]
K = 20
NUM_USERS = 200
BEAM_WIDTH = 64
ENGINES = {"torch_fp32": ("torch", "fp32"), "auto": ("auto", "auto")}
"""The twin of the offline network, and what a node chooses by itself: where that computes in bf16, it rounds."""

Ranking = np.ndarray
"""Item ids, best first."""
console = Console(stderr=True)


@dataclass(frozen=True)
class Agreement:
    """How alike the first K items of two rankings are, over users."""

    users: int
    same_list: float
    """Share of users with the same items in the same order."""
    same_items: float
    """Mean share of the items that both lists hold."""
    recall_offline: float
    """Mean share of the next basket's distinct items."""
    recall_served: float


def main() -> None:
    """Train or load, replay, ask, compare; once per engine."""
    arguments = _parse_arguments()
    task = load_task()
    ranker = Gemstream()
    if arguments.bundle:
        ranker.use(arguments.bundle)
    else:
        ranker.fit(task, Budget(arguments.minutes, num_threads=2))
    bundle = ranker.bundle
    cuts = choose_cuts(task.histories, task.cuts, arguments.users)
    ranked = rank(bundle, task, cuts, BEAM_WIDTH, live=False)  # of old events nothing trends
    offline = [best[:K] for best in track(ranked, "offline", len(cuts), console=console)]
    figures = {
        name: compare(task.histories, cuts, offline, serve(bundle, task.histories, cuts, name))
        for name in ENGINES
    }
    _show(figures)
    write_report("quality.served", arguments.quick, {k: asdict(v) for k, v in figures.items()})


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench NAME=quality.served", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short training, 50 users")
    parser.add_argument("--users", type=int, help=f"default: {NUM_USERS}, quick: 50")
    parser.add_argument("--minutes", type=float, help="of training; default: 4, quick: 0.8")
    parser.add_argument("--bundle", type=Path, help="serve this one instead of training")
    arguments = parser.parse_args()
    arguments.users = arguments.users or (50 if arguments.quick else NUM_USERS)
    arguments.minutes = arguments.minutes or (0.8 if arguments.quick else 4.0)
    return arguments


def choose_cuts(histories: Histories, cuts: Index, num_users: int) -> Index:
    """The last cut of so many users, chosen at random by a fixed seed."""
    last = np.append(np.diff(histories.users[cuts]) != 0, True)
    random = np.random.default_rng(0)
    chosen = random.choice(cuts[last], min(num_users, int(last.sum())), replace=False)
    return np.sort(chosen)


def serve(bundle: Bundle, histories: Histories, cuts: Index, engine: str) -> list[Ranking]:
    """What a deployment of all roles recommends to each user when it has had everything before the cut.

    Raises SystemExit where an answer lacks something, as it would then be no comparison.
    """
    with deployment(settings(bundle.history, *ENGINES[engine]), bundle.path, console) as where:
        replay(where, history_log(histories, cuts), console)
        asked = list(zip(histories.users[cuts], histories.rows["event_time_ms"][cuts], strict=True))
        return [_ask(where, *each) for each in track(asked, engine, console=console)]


def settings(history: HistoryConfig, engine: str, precision: str) -> str:
    """TOML for `deployment`: segments as trained, the engine as asked for."""
    lines = [f"{each.name} = {_toml(getattr(history, each.name))}" for each in fields(history)]
    segments = "\n".join(lines)
    return (
        f"[history]\n{segments}\n[inference_node.engine]\n"
        f'name = "{engine}"\nprecision = "{precision}"\n'
    )


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def name_of(user: int) -> str:
    """The user id under which a user of the histories is served."""
    return f"user-{user}"


def history_log(histories: Histories, cuts: Index) -> EventLog:
    """Everything before each cut, as it happened."""
    starts = histories.user_start[cuts]
    places = np.concatenate([np.arange(a, b) for a, b in zip(starts, cuts, strict=True)])
    names = np.array([name_of(user) for user in histories.users[places].tolist()])
    return make_event_log(names, {name: histories.rows[name][places] for name in _GIVEN})


def _ask(where: Deployment, number: int, time_ms: int) -> Ranking:
    user = name_of(number)
    request = RecommendRequest(user_id=user, k=K, beam_width=BEAM_WIDTH, time_ms=int(time_ms))
    reply = clients.recommend(Target(where.recommender), request, TIMEOUT_S)
    if reply.degraded or any(entry.source != SOURCE_PERSONAL for entry in reply.items):
        missing = ", ".join(map(Degradation.Name, reply.degraded)) or "not all items are personal"
        raise SystemExit(f"{user}: the answer is not complete: {missing}")
    return np.array([entry.item.item_id for entry in reply.items], np.uint64)


def compare(
    histories: Histories, cuts: Index, offline: Sequence[Ranking], served: Sequence[Ranking]
) -> Agreement:
    """Both rankings against one another, and against what came next."""
    ids, ends = histories.rows["item_id"], histories.basket_end[cuts]
    baskets = [np.unique(ids[cut:end]) for cut, end in zip(cuts, ends, strict=True)]
    pairs = list(zip(offline, served, strict=True))
    return Agreement(
        users=len(cuts),
        same_list=_mean([np.array_equal(a, b) for a, b in pairs]),
        same_items=_mean([np.isin(a, b).mean() for a, b in pairs]),
        recall_offline=_recall(baskets, offline),
        recall_served=_recall(baskets, served),
    )


def _recall(baskets: Sequence[Ranking], rankings: Sequence[Ranking]) -> float:
    pairs = zip(baskets, rankings, strict=True)
    return _mean([np.isin(basket, best).mean() for basket, best in pairs])


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _show(figures: dict[str, Agreement]) -> None:
    columns = [each.name for each in fields(Agreement)]
    table = Table("engine", *columns)
    for name, agreement in figures.items():
        table.add_row(name, *(f"{getattr(agreement, column):g}" for column in columns))
    console.print(table)


if __name__ == "__main__":
    main()
