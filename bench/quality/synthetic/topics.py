"""The items of the synthetic stream: latent topics, new items every day, and how probable each is on a day."""

import numpy as np
import numpy.typing as npt

from bench.quality.synthetic.draws import CATALOGUE, generator
from bench.quality.synthetic.stream_config import StreamConfig

Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_STOCK = 3  # times freshness_days: how old the oldest items are on the first day
_QUALITY_SPREAD, _POPULARITY_SPREAD = 0.7, 0.5
_AUTHORS_PER_TOPIC, _STRANGERS = 10, 0.1
_TOPICS_PER_TAG = 4
_CONTENT_WIDTH, _CONTENT_NOISE = 32, 0.3


class Topics:
    """All items, by topic and day of birth: item i is the (i mod N)-th of topic i // N.

    P(item | topic, day) is proportional to its quality times exp(-age / freshness_days). The day cancels out, so one
    cumulative sum per topic serves every day: it is cut where the items of that day end. Shapes: K topics, N items of each.
    """

    def __init__(self, config: StreamConfig) -> None:
        """Everything follows from the seed."""
        random = generator(config.seed, CATALOGUE, 0)
        stock_days = _STOCK * config.freshness_days
        per_topic = max(2, round(config.items_per_topic_day * (config.num_days + stock_days)))
        shape = (config.num_topics, per_topic)
        self.births_KN = np.sort(random.uniform(-stock_days, config.num_days, shape), axis=1)
        self.births_KN[:, 0] = -stock_days  # a topic is never empty
        quality = random.lognormal(0.0, _QUALITY_SPREAD, shape)
        age = (self.births_KN - config.num_days) / config.freshness_days
        self.weights_KN = quality * np.exp(age)
        self.sums_KN = np.cumsum(self.weights_KN, axis=1)
        popularity = random.lognormal(0.0, _POPULARITY_SPREAD, config.num_topics)
        self.popularity_K = popularity / popularity.sum()
        self._describe(random)

    def _describe(self, random: np.random.Generator) -> None:
        num_topics, per_topic = self.births_KN.shape
        self.topic_of_item: Index = np.repeat(np.arange(num_topics), per_topic)
        num_items = len(self.topic_of_item)
        strange = random.random(num_items) < _STRANGERS
        home = np.where(strange, random.integers(0, num_topics, num_items), self.topic_of_item)
        own = random.integers(0, _AUTHORS_PER_TOPIC, num_items)
        self.item_ids = np.arange(1, num_items + 1, dtype=np.uint64)
        self.author_ids = (1 + home * _AUTHORS_PER_TOPIC + own).astype(np.uint64)
        self.tags = (1 + self.topic_of_item // _TOPICS_PER_TAG).astype(np.uint32)
        centres = random.standard_normal((num_topics, _CONTENT_WIDTH))
        noise = random.standard_normal((num_items, _CONTENT_WIDTH))
        scale = _CONTENT_WIDTH**-0.5
        self.content = scale * (centres[self.topic_of_item] + _CONTENT_NOISE * noise)
        """[items, 32]: what a content model would know of the items; near those of the same topic."""

    def draw(self, topics: Index, days: Floats, uniform: Floats) -> Index:
        """One item for each (topic, day), by inversion."""
        items = np.empty(len(topics), np.int64)
        per_topic = self.births_KN.shape[1]
        for topic in np.unique(topics):
            here = np.flatnonzero(topics == topic)
            born = np.searchsorted(self.births_KN[topic], days[here], side="right")
            totals = self.sums_KN[topic, born - 1]
            found = np.searchsorted(self.sums_KN[topic], uniform[here] * totals, side="right")
            items[here] = topic * per_topic + np.minimum(found, born - 1)
        return items

    def probabilities(self, topic_shares: Floats, day: float) -> Floats:
        """[items]: P(item) on `day`, given P(topic)."""
        born = self.births_KN <= day
        weights = self.weights_KN * born
        shares = weights / weights.sum(axis=1, keepdims=True)
        return np.asarray((topic_shares[:, None] * shares).reshape(-1))
