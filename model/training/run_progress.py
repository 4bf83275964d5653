"""How far a run is, kept in its checkpoints; between two steps it stops when it is asked to."""

from collections.abc import Callable

from torch import Tensor

from model.errors import TrainingStopped
from model.network import Network
from model.training.run_state import RunState
from model.training.steps import Surroundings

_NETWORK = "network/"


class RunProgress:
    """State, budget and weights of one run, between two steps of any stage."""

    def __init__(self, network: Network, around: Surroundings) -> None:
        """At the beginning."""
        self.state = RunState()
        self.tensors: dict[str, Tensor] = {}
        """What the optimiser of the running stage had learnt, from the checkpoint."""
        self.saved_step: int | None = None
        """Of the last checkpoint."""
        self._network, self._around = network, around

    @property
    def step(self) -> int:
        """Steps of all stages."""
        return self.state.repeats.steps + self._around.budget.steps

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one. Raises TrainingRunError."""
        around = self._around
        found = around.log.load()
        if found is not None:
            self.tensors, progress = found
            weights = {
                name.removeprefix(_NETWORK): tensor
                for name, tensor in self.tensors.items()
                if name.startswith(_NETWORK)
            }
            self._network.load_state_dict(weights)
            self.state = RunState.of_document(progress["state"])
            around.budget.resume(progress["seconds"], progress["elapsed_s"], progress["step"])
            self.saved_step = self.step
            if around.workers.is_first:
                around.progress.console.print(f"going on after step {self.step}")
        around.log.begin(self.step)

    def save(self, optimiser: dict[str, Tensor]) -> None:
        """Write a checkpoint. Raises TrainingRunError."""
        budget = self._around.budget
        weights = {_NETWORK + name: t for name, t in self._network.state_dict().items()}
        self._around.log.save(
            weights | optimiser,
            {
                "state": self.state.document(),
                "seconds": budget.seconds,
                "elapsed_s": budget.elapsed_s,
                "step": budget.steps,
            },
        )
        self.saved_step = self.step

    def agree(self, stage: str, spent: float, optimiser: Callable[[], dict[str, Tensor]]) -> float:
        """Clock and signals of the first process count for all; it writes a checkpoint when one is due.

        Returns its share of the budget. Raises TrainingStopped when a signal came, TrainingRunError.
        """
        log = self._around.log
        spent, stop, due = self._around.workers.agree(spent, log.stop_signal, log.is_due)
        if due or stop:
            self.save(optimiser())
        if stop:
            raise TrainingStopped(
                f"stopped after step {self.step} in stage {stage!r}; the same command goes on from there",
                int(stop),
            )
        return spent
