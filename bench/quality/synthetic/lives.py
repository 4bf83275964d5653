"""One user's life: sessions, each opened by a cause, and which item was taken when."""

from dataclasses import dataclass

import numpy as np

from bench.quality.synthetic.draws import ITEMS, LIFE, TIMES, generator
from bench.quality.synthetic.stream_config import (
    EPISODE,
    LIFECYCLE,
    NOISE,
    PLANTED,
    SESSION,
    StreamConfig,
)
from bench.quality.synthetic.topics import Floats, Index, Topics

START_MS = 1_640_995_200_000  # 2022-01-01
_DAY_MS = 86_400_000
_MAX_BUSY = 0.5
_SECONDS_BETWEEN = (20.0, 90.0)
_NEVER = -(2**62)


@dataclass(frozen=True)
class Life:
    """Interactions of one user, oldest first."""

    tastes: Index
    opens: np.ndarray
    """Per interaction, whether it opens a session. The one before it closes one, which the log shows."""
    causes: Index
    reaches: Index
    """How many interactions back the cause lies; 0 where there is none."""
    topics: Index
    items: Index
    times_ms: Index


def live(config: StreamConfig, topics: Topics, user: int) -> Life:
    """The life of user number `user`."""
    random = generator(config.seed, LIFE, user)
    span = np.log(config.max_length / config.min_length)
    length = round(config.min_length * float(np.exp(span * random.random())))
    tastes = random.choice(config.num_topics, config.num_tastes, replace=False)
    starts = _session_starts(config, length, random)
    opens = np.zeros(length, np.bool_)
    opens[starts] = True
    causes, reaches = _session_causes(config, opens, starts, random)
    opener = _Opener(config, topics, tastes, length)
    for place, end in zip(starts.tolist(), [*starts[1:].tolist(), length], strict=True):
        causes[place], reaches[place] = opener.open(place, end, random)
    times_ms = _times(config, opens, generator(config.seed, TIMES, user))
    uniform = generator(config.seed, ITEMS, user).random(length)
    days = (times_ms - START_MS) / _DAY_MS
    items = topics.draw(opener.topics, days, uniform)
    return Life(tastes, opens, causes, reaches, opener.topics, items, times_ms)


def _session_starts(config: StreamConfig, length: int, random: np.random.Generator) -> Index:
    """A burst for every taste, then sessions of geometric length."""
    lengths = random.geometric(1 - config.weights.session, length)
    lengths[: config.num_tastes] = config.burst_len
    starts = np.append(0, np.cumsum(lengths))
    return starts[starts < length]


def _session_causes(
    config: StreamConfig, opens: np.ndarray, starts: Index, random: np.random.Generator
) -> tuple[Index, Index]:
    """As if all interactions were caused by a session: reach r with probability 2^-r, within it and `session_reach`."""
    length = len(opens)
    inside = np.arange(length) - starts[np.cumsum(opens) - 1]
    most = np.minimum(inside, config.session_reach)
    mass = 1 - np.exp2(-most.astype(np.float64))
    reaches = np.ceil(-np.log2(1 - random.random(length) * mass)).astype(np.int64)
    return np.full(length, SESSION), np.clip(reaches, 1, np.maximum(most, 1))


class OpeningTopics:
    """P(topic) of a session that is opened, by each cause. What a cause cannot give is noise."""

    def __init__(self, config: StreamConfig, topics: Topics) -> None:
        """Reaches of episodes are log-uniform: r has 1 / r."""
        self._config, self.popularity_K = config, topics.popularity_K
        low, high = config.episode_reach
        self.episode_weights: Floats = 1 / np.arange(low, high + 1)
        self.episode_sums = np.cumsum(self.episode_weights)

    def weights(self, place: int, num_waiting: int) -> tuple[float, float, float]:
        """P(episode), P(lifecycle), P(noise) at position `place` where so many tastes wait."""
        weights = self._config.weights
        episode = weights.episode if place >= self._config.episode_reach[0] else 0.0
        lifecycle = weights.lifecycle if num_waiting else 0.0
        total = 1 - weights.session
        return episode / total, lifecycle / total, 1 - (episode + lifecycle) / total

    def waiting(self, tastes: Index, last_seen: Index, place: int) -> Index:
        """Tastes without evidence in the last `lifecycle_reach` - 1 interactions."""
        return tastes[place - last_seen[tastes] >= self._config.lifecycle_reach]

    def num_reaches(self, place: int) -> int:
        """How many of the episodes' reaches lie within the life so far."""
        low, high = self._config.episode_reach
        return min(high, place) - low + 1


class _Opener:
    """Opens the sessions of one life, in order."""

    def __init__(self, config: StreamConfig, topics: Topics, tastes: Index, length: int) -> None:
        self._config, self._tastes = config, tastes
        self._opening = OpeningTopics(config, topics)
        self._popularity_sums = np.cumsum(topics.popularity_K)
        self._last_seen = np.full(config.num_topics, _NEVER)
        self._num_opened = 0
        self.topics = np.empty(length, np.int64)

    def open(self, place: int, end: int, random: np.random.Generator) -> tuple[int, int]:
        """The cause and its reach of the session at [place, end), which gets its topic."""
        which, value = random.random(2)
        if self._num_opened < len(self._tastes):
            cause, reach, topic = PLANTED, 0, int(self._tastes[self._num_opened])
        else:
            cause, reach, topic = self._choose(place, float(which), float(value))
        self._num_opened += 1
        self.topics[place:end] = topic
        self._last_seen[topic] = end - 1
        return cause, reach

    def _choose(self, place: int, which: float, value: float) -> tuple[int, int, int]:
        opening = self._opening
        waiting = opening.waiting(self._tastes, self._last_seen, place)
        episode, lifecycle, _ = opening.weights(place, len(waiting))
        if which < episode:
            sums = opening.episode_sums[: opening.num_reaches(place)]
            found = int(np.searchsorted(sums, value * sums[-1], side="right"))
            reach = self._config.episode_reach[0] + min(found, len(sums) - 1)
            return EPISODE, reach, int(self.topics[place - reach])
        if which < episode + lifecycle:
            topic = int(waiting[int(value * len(waiting))])
            return LIFECYCLE, place - int(self._last_seen[topic]), topic
        found = int(np.searchsorted(self._popularity_sums, value, side="right"))
        return NOISE, 0, min(found, self._config.num_topics - 1)


def _times(config: StreamConfig, opens: np.ndarray, random: np.random.Generator) -> Index:
    """Strictly growing; sessions are dense, what is left of `life_days` lies between them."""
    length = len(opens)
    steps = random.uniform(*_SECONDS_BETWEEN, length) * 1_000
    pauses = random.exponential(size=length) * opens
    first_ms = random.uniform(0, config.num_days - config.life_days) * _DAY_MS
    life_ms = config.life_days * _DAY_MS
    steps *= min(1.0, _MAX_BUSY * life_ms / steps.sum())
    pauses *= (life_ms - steps.sum()) / max(pauses.sum(), 1e-9)
    places = first_ms + np.cumsum(steps + pauses)
    # Whole milliseconds, one at least between neighbours; the last stays within the stream's days.
    places = np.minimum(places, config.num_days * _DAY_MS - length) + np.arange(length)
    return START_MS + places.astype(np.int64)
