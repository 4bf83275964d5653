"""Two state nodes with half of the partitions each, against one with all of them, on the same topic."""

from contextlib import ExitStack
from statistics import median
from typing import Any

from rich.table import Table

from bench.ingest.arena import Arena, EngineProcess, Outcome, console, output
from stream.topics import TopicsConfig


def measure(arena: Arena, topics: TopicsConfig, num_events: int, repeats: int) -> dict[str, Any]:
    """Events a second together, one against two, alternating. The topic is filled already."""
    runs: dict[int, list[Outcome]] = {1: [], 2: []}
    for _ in range(repeats):
        for num_nodes in runs:
            with console.status(f"{num_nodes} state nodes: {num_events:,} events"):
                runs[num_nodes].append(_run(arena, topics, num_events, num_nodes))
    rates = {nodes: [run["events_per_s"] for run in of] for nodes, of in runs.items()}
    ratio = median(rates[2]) / median(rates[1])
    _print(runs, ratio)
    return {
        "two_nodes_events_per_s": round(median(rates[2])),
        "one_node_events_per_s": round(median(rates[1])),
        "two_nodes_ratio": round(ratio, 2),
        "two_nodes_cores": [round(run["cores"], 2) for run in runs[2]],
        "one_node_cores": [round(run["cores"], 2) for run in runs[1]],
        "two_nodes_cpu_us_per_event": round(median(run["cpu_us"] for run in runs[2]), 2),
        "one_node_cpu_us_per_event": round(median(run["cpu_us"] for run in runs[1]), 2),
        "two_nodes_broker_cores": [round(run["broker_cores"], 2) for run in runs[2]],
    }


def _run(arena: Arena, topics: TopicsConfig, num_events: int, num_nodes: int) -> Outcome:
    """All nodes begin at the same word, when each has its partitions; the last to end counts."""
    fields = {
        "group": f"{topics.interactions}-{num_nodes}-{next(arena.numbers)}",
        "num_partitions": topics.num_partitions // num_nodes,
        "held": True,
    }
    jobs = [arena.job("gemstream", topics, num_events, **fields) for _ in range(num_nodes)]
    with ExitStack() as stack:
        nodes = [stack.enter_context(EngineProcess(job)) for job in jobs]
        for node in nodes:
            node.wait_for("ready")
        broker_before = _cpu_seconds(arena)
        for node in nodes:
            node.release()
        for node in nodes:
            node.wait_for("done")
        broker = _cpu_seconds(arena) - broker_before
        for node in nodes:
            node.release()
        outcomes = [node.outcome() for node in nodes]
    seconds = max(outcome["seconds"] for outcome in outcomes)
    cpu = sum(outcome["cpu_seconds"] for outcome in outcomes)
    return {
        "events_per_s": num_events / seconds,
        "seconds_of_nodes": [outcome["seconds"] for outcome in outcomes],
        "events_of_nodes": [outcome["counters"]["interactions"] for outcome in outcomes],
        "cores": cpu / seconds,
        "cpu_us": 1e6 * cpu / num_events,
        "broker_cores": broker / seconds,
        "load_average": outcomes[0]["load_average"],
    }


def _cpu_seconds(arena: Arena) -> float:
    times = arena.kafka.process.cpu_times()
    return float(times.user + times.system)


def _print(runs: dict[int, list[Outcome]], ratio: float) -> None:
    table = Table(
        "nodes",
        "events/s",
        "events and seconds of each",
        "cores",
        "broker's",
        "CPU us/event",
        "load",
        title="State nodes on two cores",
    )
    for num_nodes, of in runs.items():
        for run in of:
            each = zip(run["events_of_nodes"], run["seconds_of_nodes"], strict=True)
            table.add_row(
                str(num_nodes),
                f"{run['events_per_s']:,.0f}",
                ", ".join(f"{events:,} in {seconds:.2f}" for events, seconds in each),
                f"{run['cores']:.2f}",
                f"{run['broker_cores']:.2f}",
                f"{run['cpu_us']:.2f}",
                f"{run['load_average']:.1f}",
            )
    table.caption = f"two over one: {ratio:.2f}, median of each"
    output.print(table)
