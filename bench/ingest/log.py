"""The log that every engine reads: synthetic users with Zipf activity, one protobuf Interaction per record."""

import numpy as np

from services.event_producer import produce_events
from state.event_log import EventLog
from state.interaction import INTERACTION, hash_events
from stream.producer import Producer
from stream.topics import TopicsConfig, ensure_topics

START_MS = 1_750_000_000_000
NUM_ITEMS = 100_000


def make_log(num_events: int, num_users: int, seed: int = 0) -> EventLog:
    """Events one millisecond apart, of users drawn with probability ~ 1 / rank."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, num_users + 1)
    users = random.choice(num_users, num_events, p=weights / weights.sum())
    rows = np.zeros(num_events, INTERACTION)
    rows["item_id"] = random.integers(1, NUM_ITEMS, num_events)
    rows["author_id"] = rows["item_id"] % 5_000
    rows["tag"] = rows["item_id"] % 300
    rows["event_time_ms"] = START_MS + np.arange(num_events)
    rows["play_time_ms"] = random.integers(0, 60_000, num_events)
    rows["kinds"] = 2
    event_ids = [str(number) for number in range(num_events)]
    rows["event_hash"] = hash_events(event_ids, rows["event_time_ms"])
    return EventLog([f"user-{n}" for n in range(num_users)], users, event_ids, rows)


async def fill_topic(bootstrap: str, topics: TopicsConfig, log: EventLog) -> None:
    """Make the topics and put the log into them."""
    await ensure_topics(bootstrap, topics)
    async with Producer(bootstrap) as producer:
        await produce_events(log, producer, topics, lambda _: None)
