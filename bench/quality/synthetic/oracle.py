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
        topics_K = np.zeros(self._config.num_topics)
        if not life.opens[
            place
        ]:  # what the log shows: the interaction before did not close the session
            topics_K[life.topics[place - 1]] = 1.0
            return topics_K
        last_seen_K = np.full(self._config.num_topics, _NEVER)
        last_seen_K[life.topics[:place]] = np.arange(place)
        waiting = self._opening.waiting(life.tastes, last_seen_K, place)
        episode, lifecycle, noise = self._opening.weights(place, len(waiting))
        if episode:
            weights = self._opening.episode_weights[: self._opening.num_reaches(place)]
            newest = place - self._config.episode_reach[0]
            copied = life.topics[newest - np.arange(len(weights))]
            topics_K += episode * np.bincount(copied, weights, len(topics_K)) / weights.sum()
        if lifecycle:
            topics_K[waiting] += lifecycle / len(waiting)
        return np.asarray(topics_K + noise * self._topics.popularity_K)

    def item_probabilities(self, life: Life, place: int) -> Floats:
        """[items], in the order of `Topics.item_ids`."""
        day = float(life.times_ms[place] - START_MS) / _DAY_MS
        return self._topics.probabilities(self.topic_probabilities(life, place), day)
