"""When a stage has converged: a plateau of its smoothed validation loss."""

from dataclasses import dataclass

from model.training.config import StageRules


@dataclass
class Convergence:
    """What the plateau rule remembers of a stage; plain numbers, so that a checkpoint holds it."""

    smoothed: float | None = None
    best: float | None = None
    without_improvement: int = 0

    def reached(self, loss: float, steps: int, rules: StageRules) -> bool:
        """Take the evaluation after `steps` steps of the stage; true at a plateau."""
        past = loss if self.smoothed is None else self.smoothed
        self.smoothed = rules.smoothing * past + (1 - rules.smoothing) * loss
        if self.best is None or self.smoothed < self.best - rules.min_improvement:
            self.best, self.without_improvement = self.smoothed, 0
        else:
            self.without_improvement += 1
        return self.without_improvement >= rules.patience and steps >= rules.min_steps
