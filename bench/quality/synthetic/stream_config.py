"""What the synthetic stream is made of: sizes, causes and their weights, reaches, disorder."""

from dataclasses import dataclass, field, fields

CAUSES = ("planted", "session", "episode", "lifecycle", "noise")
PLANTED, SESSION, EPISODE, LIFECYCLE, NOISE = range(len(CAUSES))


@dataclass(frozen=True, kw_only=True)
class CauseWeights:
    """Shares of the interactions that each cause makes, sum 1; "planted" is over when a life's first sessions are."""

    session: float = 0.88
    episode: float = 0.03
    lifecycle: float = 0.04
    noise: float = 0.05

    def __post_init__(self) -> None:
        """Raises ValueError unless they are shares and sessions end."""
        shares = [getattr(self, one.name) for one in fields(self)]
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9 or self.session == 1:
            raise ValueError(f"{self}: each must be at least 0, session below 1, their sum 1")

    def without(self, cause: str) -> "CauseWeights":
        """The control: this cause has weight 0, what it had is noise."""
        shares = {one.name: getattr(self, one.name) for one in fields(self)}
        shares["noise"] += shares[cause]
        return CauseWeights(**{**shares, cause: 0.0})


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """One stream. The defaults suit segments of 16 recent and 64 mid-term interactions, in chunks of 16."""

    num_users: int = 600
    min_length: int = 300
    max_length: int = 900
    """Lengths of lives are log-uniform."""
    seed: int = 0
    weights: CauseWeights = field(default_factory=CauseWeights)
    num_topics: int = 40
    num_tastes: int = 8
    """Topics per user that last a life."""
    burst_len: int = 16
    """Interactions that plant a taste; all of them are liked, and nothing later is."""
    session_reach: int = 8
    episode_reach: tuple[int, int] = (24, 64)
    lifecycle_reach: int = 96
    """A lifecycle cause lies at least so many interactions back: beyond recent, mid-term and an unfinished chunk."""
    num_days: int = 365
    life_days: float = 182.0
    """From a user's first interaction to the last; lives begin at different days."""
    items_per_topic_day: float = 0.2
    freshness_days: float = 20.0
    """An item is e times less probable so many days later."""
    duplicate_rate: float = 0.01
    """Interactions that arrive twice, with one event id."""
    late_rate: float = 0.01
    """Interactions that arrive after newer ones."""
    max_delay: int = 20
    """Interactions of the user that a duplicate or a late one arrives after."""
    shuffled_share: float = 0.0
    """The control: so much of every life, from its beginning, is permuted after it was made."""

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that do not fit together."""
        low, high = self.episode_reach
        if not 1 <= self.session_reach < low <= high < self.lifecycle_reach:
            raise ValueError(
                f"reaches are {self.session_reach}, {self.episode_reach} and {self.lifecycle_reach}: they must grow"
            )
        least = 2 * self.num_tastes * self.burst_len
        if not least <= self.min_length <= self.max_length:
            raise ValueError(
                f"lives are {self.min_length} to {self.max_length} long; they must have {least} interactions at least, "
                f"half of which plant {self.num_tastes} tastes, and the shortest cannot be longer than the longest"
            )
        if not 1 <= self.num_tastes <= self.num_topics or self.life_days > self.num_days:
            raise ValueError(
                f"{self.num_tastes} tastes of {self.num_topics} topics, lives of {self.life_days:g} of {self.num_days} days: "
                "the first cannot be more than the second"
            )
        rates = (self.duplicate_rate, self.late_rate, self.shuffled_share)
        if min(rates) < 0 or max(rates) > 1 or min(self.num_users, self.max_delay) < 1:
            raise ValueError(f"{self}: rates are from 0 to 1, users and max_delay at least 1")


def product_segments() -> StreamConfig:
    """Reaches for the service's default segments: 256 recent, 5,000 with mid-term, chunks of 256.

    A window of 5,256 interactions holds 150 sessions of noise, so there are many more topics than that.
    """
    return StreamConfig(
        weights=CauseWeights(session=0.94, episode=0.03, lifecycle=0.002, noise=0.028),
        min_length=6_000,
        max_length=100_000,
        num_topics=1_000,
        num_tastes=16,
        items_per_topic_day=0.1,
        episode_reach=(300, 4_000),
        lifecycle_reach=5_256,
    )
