"""The oracle: it knows the latent state behind every life, and so the exact probability of each next item."""

import numpy as np

from bench.quality.synthetic.lives import START_MS, Life, OpeningTopics
from bench.quality.synthetic.stream_config import StreamConfig
from bench.quality.synthetic.topics import Floats, Topics

_DAY_MS = 86_400_000
_NEVER = -(2**62)


class Oracle:
    """P(next item) from the true causes, topics and times. Valid once a life's tastes are planted."""

    def __init__(self, config: StreamConfig, topics: Topics) -> None:
        """`topics`: the stream's."""
        self._config, self._topics = config, topics
        self._opening = OpeningTopics(config, topics)

    def topic_probabilities(self, life: Life, place: int) -> Floats:
        """[K]: of the interaction at `place`, from what lies before it."""
        shares = np.zeros(self._config.num_topics)
        if not life.opens[
            place
        ]:  # what the log shows: the interaction before did not close the session
            shares[life.topics[place - 1]] = 1.0
            return shares
        last_seen = np.full(self._config.num_topics, _NEVER)
        last_seen[life.topics[:place]] = np.arange(place)
        waiting = self._opening.waiting(life.tastes, last_seen, place)
        episode, lifecycle, noise = self._opening.weights(place, len(waiting))
        if episode:
            weights = self._opening.episode_weights[: self._opening.num_reaches(place)]
            newest = place - self._config.episode_reach[0]
            copied = life.topics[newest - np.arange(len(weights))]
            shares += episode * np.bincount(copied, weights, len(shares)) / weights.sum()
        if lifecycle:
            shares[waiting] += lifecycle / len(waiting)
        return np.asarray(shares + noise * self._topics.popularity_K)

    def item_probabilities(self, life: Life, place: int) -> Floats:
        """[items], in the order of `Topics.item_ids`."""
        day = float(life.times_ms[place] - START_MS) / _DAY_MS
        return self._topics.probabilities(self.topic_probabilities(life, place), day)
