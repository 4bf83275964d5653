"""What a training run is: `[train]` of the settings file, and its `[history]`."""

from dataclasses import dataclass, field
from typing import Literal

from model.errors import ModelConfigError
from model.limits import check_limits
from model.network import NetworkConfig
from model.summary_size import check_summary_size
from model.tokenizer.item_vectors import ItemVectorConfig
from model.tokenizer.tokenizer import TokenizerConfig
from state.interaction import KIND_NAMES
from state.segments import HistoryConfig

_MAX_THREADS, _MAX_SEED = 1024, 2**63 - 1


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
    """Steps after which each stage ends, "repeats" too, whatever its loss does."""

    def __post_init__(self) -> None:
        """Shares are positive and sum to one; counts are at least one."""
        if min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ModelConfigError(f"shares are {self.shares}; each must be above 0, the sum 1")
        check_limits(self, "evaluate_every", "patience", least=1)
        check_limits(self, "min_improvement", "min_steps", least=0)
        if not 0 <= self.smoothing < 1:
            raise ModelConfigError(
                f"smoothing is {self.smoothing}; it must be at least 0 and below 1"
            )
        if self.max_steps is not None and self.max_steps < max(1, self.min_steps):
            raise ModelConfigError(
                f"stages.max_steps is {self.max_steps}; it must be at least 1 and at least min_steps, {self.min_steps}"
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
    """Steps of dense, indexer and selection together; stage "repeats" takes as many of its own before, at most.

    Set, it replaces the time budget and makes a run repeatable.
    """
    seed: int = 0
    batch_size: int = 32
    """Contexts per step."""
    even_batches: bool = False
    """Steps of about as many recent interactions: of short histories more contexts, `batch_size` on average."""
    codes_every: int = 1
    """Steps of stage "dense" of which one learns everything; the others learn items scored beside codes alone."""
    target_kinds: tuple[str, ...] = ()
    """Kinds of interactions that are to be recommended: others are history alone. None: all; dislikes never are."""
    targets: int = 32
    """Target interactions per context, drawn from what follows it."""
    target_window: int = 48
    """Interactions after the cut to draw from; the whole next basket at least."""
    newest_cuts: float = 0.0
    """Share of contexts that end where a user's last trainable basket with a target begins, users alike; the others end anywhere."""
    arrival_cuts: float = 0.0
    """Share of contexts, but for the last stage, that end before something whose first code the nearer segments lack."""
    lifecycle_sample: int = 128
    """Lifecycle interactions used per context, one drawn from each of so many equal parts; serving sums them all."""
    learning_rate: float = 2e-3
    reconstruction_weight: float = 0.1
    repeat_weight: float = 1.0
    """Of the listwise loss of the repeats' scores."""
    next_item_weight: float = 1.0
    """Of the loss of items scored beside codes."""
    table_rate: float = 0.1
    """Learning rate of the item table and of the codebooks, as a share of the others'."""
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

    @property
    def num_held_out(self) -> int:
        """Users whose last basket is not trained on: those who steer the stages, and those who are reported on."""
        return self.evaluation_users // 2 + self.evaluation_users

    def __post_init__(self) -> None:
        """Check the limits, and that the network's summaries can be stored."""
        check_summary_size(self.network)
        check_limits(
            self, "min_item_count", "batch_size", "codes_every", "targets", "target_window",
            "lifecycle_sample", "evaluation_users", least=1,
        )  # fmt: skip
        check_limits(self, "num_threads", least=1, most=_MAX_THREADS)
        check_limits(self, "seed", least=0, most=_MAX_SEED)
        check_limits(
            self, "reconstruction_weight", "repeat_weight", "next_item_weight", "table_rate",
            "checkpoint_every_s", least=0,
        )  # fmt: skip
        self._check_target_kinds()
        for name in ("minutes", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ModelConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.codes_every > 1 and not self.network.next_item.enabled:
            raise ModelConfigError(
                f"codes_every is {self.codes_every}; without network.next_item every step learns codes: set it to 1"
            )
        if min(self.newest_cuts, self.arrival_cuts) < 0 or self.newest_cuts + self.arrival_cuts > 1:
            raise ModelConfigError(
                f"newest_cuts is {self.newest_cuts}, arrival_cuts {self.arrival_cuts}; "
                "they must be at least 0, their sum at most 1"
            )
        if not 0 <= self.repeat_share < 1:
            raise ModelConfigError(
                f"repeat_share is {self.repeat_share}; it must be at least 0 and below 1"
            )
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ModelConfigError(
                f"precision is {self.precision!r}; it must be 'auto', 'fp32' or 'bf16'"
            )
        if self.max_steps is not None and self.max_steps < 3:
            raise ModelConfigError(f"max_steps is {self.max_steps}; three stages need at least 3")

    def _check_target_kinds(self) -> None:
        possible = [name for name in KIND_NAMES[1:] if name != "dislike"]
        if unknown := set(self.target_kinds) - set(possible):
            raise ModelConfigError(
                f"target_kinds has {', '.join(sorted(unknown))}; there are {', '.join(possible)}"
            )
