"""Where a run stands between two steps, apart from weights and optimiser: plain numbers that a checkpoint holds."""

from dataclasses import asdict, dataclass, field
from typing import Any

import cattrs

from model.training.convergence import Convergence


@dataclass(frozen=True)
class StageReport:
    """How one stage went. The indexer's figures are None while it does not learn."""

    name: str
    steps: int
    train_loss: float | None
    """Next-token loss (of "repeats": its own), mean over the last steps; None without any."""
    validation_loss: float | None
    """None where no user is held out."""
    indexer_loss: float | None
    kept_attention_mass: float | None
    ended: str
    """"plateau", "max_steps" or "budget"."""
    rule: str
    """When it had to end, in words."""
    seconds: float
    tokens_per_s: float
    peak_memory_bytes: int
    """Of the process until then; on a GPU, of its tensors."""
    kept_by_top_k: dict[str, float | None] = field(default_factory=dict)
    """Of the dense attention, what the indexers' best 64 to 1,024 would keep; empty while they do not learn.

    None where no mid-term segment is longer.
    """


@dataclass
class RepeatState:
    """How far the first stage is, which has a budget of its own."""

    steps: int = 0
    seconds: float | None = None
    """Its time budget; None before it begins."""
    elapsed_s: float = 0.0
    recent_losses: list[float] = field(default_factory=list)
    convergence: Convergence = field(default_factory=Convergence)
    ended: str | None = None


@dataclass
class RunState:
    """Stage, its progress, and what is done."""

    repeats: RepeatState = field(default_factory=RepeatState)
    stage: int = 0
    """Index of the running stage among those behind "repeats"."""
    first_step: int = 0
    """Steps of these stages before the running one."""
    start_s: float = 0.0
    """Training time before the stage."""
    start_spent: float = 0.0
    until_spent: float | None = None
    """The share of the budget at which the stage ends; None before it begins."""
    tokens: float = 0.0
    """Interactions and codes that the stage went through."""
    recent_losses: list[float] = field(default_factory=list)
    convergence: Convergence = field(default_factory=Convergence)
    ended: str | None = None
    reports: list[StageReport] = field(default_factory=list)
    precision: str | None = None
    """Chosen at the first step."""
    validation_batches: int | None = None
    """Of each process, how many a pass takes; chosen with the precision."""

    def document(self) -> dict[str, Any]:
        """JSON."""
        return asdict(self)

    @staticmethod
    def of_document(document: dict[str, Any]) -> "RunState":
        """The inverse of `document`."""
        return _converter.structure(document, RunState)

    def begin_next(self, report: StageReport) -> None:
        """The stage is over."""
        self.reports.append(report)
        self.stage += 1
        self.until_spent, self.ended, self.tokens = None, None, 0.0
        self.recent_losses, self.convergence = [], Convergence()


_converter = cattrs.Converter(forbid_extra_keys=True)
