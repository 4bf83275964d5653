"""Runs a backfill's tasks on Ray: on this machine, or on a cluster whose machines reach the same files."""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from services.backfill_job import BackfillPlan, Made, make_histories, make_summaries
from services.backfill_shards import Interactions, split_parts
from services.errors import ServiceError

OnStep = Callable[[str, int, int], None]
"""Hears what is under way, how much of it is done, and of how much."""


class RayMissing(ServiceError):
    """Ray is not installed."""


class ClusterUnreachable(ServiceError):
    """Ray cannot be started here, or the cluster does not answer."""


def run_plan(
    plan: BackfillPlan, address: str | None, num_cpus: int | None, on_step: OnStep
) -> Made:
    """Make all missing partitions of `plan`. `address` of a cluster; None: processes of this machine, `num_cpus` of them.

    Raises what the tasks raise, RayMissing, ClusterUnreachable.
    """
    if not plan.partitions:
        return Made()
    with _cluster(address, num_cpus) as ray:
        try:
            if plan.content == "histories":
                return _make_histories(ray, plan, on_step)
            return _make_summaries(ray, plan, on_step)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise ServiceError(
                f"the backfill did not end, give the same command again: {error}"
            ) from error


@contextmanager
def _cluster(address: str | None, num_cpus: int | None) -> Iterator[Any]:
    # Ray would report to its makers otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # Ray's ports are open to whoever reaches this machine: a token of this run's guards them.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise RayMissing("this needs Ray: pip install 'gemstream[backfill]'") from error
    local: dict[str, Any] = {"num_cpus": num_cpus, "include_dashboard": False}
    try:
        ray.init(
            address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else local),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterUnreachable(f"Ray at {address or 'this machine'}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _make_histories(ray: Any, plan: BackfillPlan, on_step: OnStep) -> Made:
    """Files to shards in Ray's object store, which spills to disk what memory does not hold; then partitions."""
    num_returns = 1 + len(plan.wanted_shards())
    split = ray.remote(num_cpus=1, num_returns=num_returns)(_split)
    shared = ray.put(plan)
    results = [split.remote(shared, number) for number in range(len(plan.reading))]
    _wait(ray, [of_task[0] for of_task in results], "reading histories", on_step)
    make = ray.remote(num_cpus=1)(_make_partition)
    pending = []
    for rank, partition in enumerate(plan.partitions):
        first = 1 + rank * plan.num_buckets
        shards = [
            [of_task[shard] for of_task in results]
            for shard in range(first, first + plan.num_buckets)
        ]
        pending.append(make.remote(shared, partition, shards))
    del results
    return _gather(ray, pending, on_step)


def _make_summaries(ray: Any, plan: BackfillPlan, on_step: OnStep) -> Made:
    make = ray.remote(num_cpus=1)(make_summaries)
    shared = ray.put(plan)
    return _gather(ray, [make.remote(shared, each) for each in plan.partitions], on_step)


def _gather(ray: Any, pending: Sequence[Any], on_step: OnStep) -> Made:
    made = Made()
    for part in _wait(ray, pending, "making partitions", on_step):
        made.add(part)
    return made


def _wait(ray: Any, pending: Sequence[Any], what: str, on_step: OnStep) -> list[Any]:
    """The results in the order of completion; the first failure ends it."""
    total, results, left = len(pending), [], list(pending)
    on_step(what, 0, total)
    while left:
        ready, left = ray.wait(left, num_returns=1)
        results += ray.get(ready)
        on_step(what, total - len(left), total)
    return results


def _split(plan: BackfillPlan, number: int) -> tuple[int | Interactions, ...]:
    """The number of rows, by which the driver sees that it is done, then the interactions of each wanted shard."""
    shards = split_parts(plan.reading[number], plan.sharding, plan.wanted_shards())
    return sum(len(each.rows) for each in shards), *shards


def _make_partition(plan: BackfillPlan, partition: int, shards: Sequence[Sequence[Any]]) -> Made:
    """One shard in memory at a time."""
    import ray

    return make_histories(plan, partition, (ray.get(list(parts)) for parts in shards))
