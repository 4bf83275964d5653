"""What a training run is: `[train]` of the settings file, and its `[history]`."""

from dataclasses import dataclass, field
from typing import Literal

from model.errors import ModelConfigError
from model.network import NetworkConfig
from model.num_threads import check_num_threads
from model.summary_size import check_summary_size
from model.tokenizer.item_vectors import ItemVectorConfig
from model.tokenizer.tokenizer import TokenizerConfig
from state.segments import HistoryConfig


@dataclass(frozen=True, kw_only=True)
class StageRules:
    """When a stage ends: at a plateau of its validation loss, at `max_steps`, or with its share of the budget.

    The plateau: `patience` evaluations in a row in which the smoothed loss fell by less than `min_improvement` below its
    best. Raises ModelConfigError for settings outside their limits.
    """

    shares: tuple[float, float, float] = (0.65, 0.1, 0.25)
    """Of the time or step budget: dense, + indexer loss, selection on. What a stage leaves goes to the next ones."""
    evaluate_every: int = 100
    """Steps between evaluations of the validation loss."""
    patience: int = 4
    min_improvement: float = 0.001
    smoothing: float = 0.5
    """Weight of the past in the smoothed loss: s = smoothing * s + (1 - smoothing) * loss; 0 = the loss itself."""
    min_steps: int = 0
    """Steps of a stage before a plateau may end it."""
    max_steps: int | None = None
    """Steps after which a stage ends, whatever its loss does."""

    def __post_init__(self) -> None:
        """Shares are positive and sum to one; counts are at least one."""
        if min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ModelConfigError(f"shares are {self.shares}; each must be above 0, the sum 1")
        if self.evaluate_every < 1 or self.patience < 1 or self.min_improvement < 0:
            raise ModelConfigError(
                f"evaluate_every is {self.evaluate_every} and patience {self.patience}: at least 1 each; "
                f"min_improvement is {self.min_improvement}: at least 0"
            )
        if not 0 <= self.smoothing < 1:
            raise ModelConfigError(
                f"smoothing is {self.smoothing}; it must be at least 0 and below 1"
            )
        if self.min_steps < 0 or (self.max_steps or max(1, self.min_steps)) < max(
            1, self.min_steps
        ):
            raise ModelConfigError(
                f"stages.min_steps is {self.min_steps}: at least 0; stages.max_steps is {self.max_steps}: "
                "at least 1 and at least min_steps"
            )

    def describe(self, watched: str, share: float) -> str:
        """The rule of one stage in words, for the training report."""
        most = "" if self.max_steps is None else f", at {self.max_steps} steps"
        least = "" if not self.min_steps else f" after step {self.min_steps}"
        return (
            f"at a plateau of the validation {watched} loss{least} (smoothed by {self.smoothing:g}, "
            f"less than {self.min_improvement:g} better in {self.patience} evaluations, "
            f"one every {self.evaluate_every} steps){most}, or with {share:.0%} of the budget"
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Raises ModelConfigError for settings outside their limits."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    items: ItemVectorConfig = field(default_factory=ItemVectorConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    stages: StageRules = field(default_factory=StageRules)
    min_item_count: int = 5
    """Items with fewer rows stay out of the catalogue."""
    minutes: float = 3.0
    """Wall-clock budget of the whole run, from reading to saving."""
    max_steps: int | None = None
    """Steps of all stages together; set, it replaces the time budget and makes a run repeatable."""
    seed: int = 0
    batch_size: int = 32
    """Contexts per step."""
    targets: int = 32
    """Target interactions per context, drawn from what follows it."""
    target_window: int = 48
    """Interactions after the cut to draw from; the whole next basket at least."""
    lifecycle_sample: int = 128
    """Lifecycle interactions used per context, evenly spread; serving sums them all."""
    learning_rate: float = 2e-3
    reconstruction_weight: float = 0.1
    repeat_weight: float = 1.0
    """Of the listwise loss of the repeats' scores."""
    repeat_share: float = 0.25
    """Of the time budget: the stage that trains these scores alone. With max_steps, it takes as many of its own."""
    num_threads: int = 2
    evaluation_users: int = 512
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; weights stay float32. "auto" times both on the first batch, where the processor has bf16."""
    gradient_checkpointing: bool = False
    """Keep only the layers' inputs and compute the rest again on the way back: less memory, more time."""
    checkpoint_every_s: float = 60.0
    """Time between checkpoints of the run; there is one at each stage's end and at a signal, too."""

    def __post_init__(self) -> None:
        """Check the limits, and that the network's summaries can be stored."""
        check_summary_size(self.network)
        check_num_threads(self.num_threads)
        for name in (
            "min_item_count", "batch_size", "targets", "target_window", "lifecycle_sample",
            "evaluation_users",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ModelConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if (
            self.minutes <= 0
            or self.learning_rate <= 0
            or min(self.reconstruction_weight, self.repeat_weight) < 0
        ):
            raise ModelConfigError(
                f"minutes is {self.minutes} and learning_rate {self.learning_rate}: above 0 each; "
                f"reconstruction_weight is {self.reconstruction_weight} and repeat_weight {self.repeat_weight}: at least 0"
            )
        if not 0 <= self.repeat_share < 1:
            raise ModelConfigError(
                f"repeat_share is {self.repeat_share}; it must be at least 0 and below 1"
            )
        if self.seed < 0 or self.checkpoint_every_s < 0:
            raise ModelConfigError(
                f"seed is {self.seed} and checkpoint_every_s {self.checkpoint_every_s}: at least 0 each"
            )
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ModelConfigError(
                f"precision is {self.precision!r}; it must be 'auto', 'fp32' or 'bf16'"
            )
        if self.max_steps is not None and self.max_steps < 3:
            raise ModelConfigError(f"max_steps is {self.max_steps}; three stages need at least 3")
