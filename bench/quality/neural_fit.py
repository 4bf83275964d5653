"""Fits rankers' networks within minutes: AdamW, learning rate by the time spent, the weights that ranked validation baskets best."""

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from bench.quality.task import Budget, Task
from model.training.devices import new_tensors_on, training_device

B = TypeVar("B")
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, how fast, how often it is judged."""

    learning_rate: float
    weight_decay: float = 0.0
    warmup_share: float = 0.03
    """Of the budget: the learning rate rises to its full height."""
    cosine: bool = True
    """The learning rate falls to nothing at the end of the budget; else it stays."""
    max_steps: int | None = None
    """Takes the place of minutes and makes a fit repeatable."""
    num_judgements: int = 16
    """Times that validation baskets are ranked over the whole budget."""
    patience: int = 4
    """Judgements in a row without a new best one, after which fitting ends."""
    clip_norm: float = 1.0


class Trainable(Protocol[B]):
    """What is fitted."""

    @property
    def network(self) -> nn.Module: ...

    def batches(self) -> Iterator[B]:
        """Of one epoch."""
        ...

    def loss(self, batch: B) -> Tensor: ...

    def quality(self) -> float:
        """NDCG@10 of validation baskets."""
        ...


@dataclass
class Judgement:
    step: int
    minutes: float
    processor_minutes: float
    """What a busy machine gave in these minutes."""
    loss: float
    """Mean over the steps since the last one."""
    quality: float


@dataclass
class Fit(Generic[B]):
    """One fit; `judgements` tell how it went."""

    trainable: Trainable[B]
    schedule: Schedule
    seconds: float
    report: Callable[[Judgement], None] = lambda _: None
    judgements: list[Judgement] = field(default_factory=list)

    def run(self) -> None:
        """Leaves the best weights in the network, which then is in evaluation mode."""
        self._start, self._step = time.monotonic(), 0
        self._processor_start = time.process_time()
        self._losses: list[float] = []
        network, schedule = self.trainable.network, self.schedule
        self._optimiser = torch.optim.AdamW(
            _decayed_apart(network, schedule.weight_decay), lr=schedule.learning_rate, fused=True
        )
        best, due = copy.deepcopy(network.state_dict()), 1 / schedule.num_judgements
        for batch in self._endless_batches():
            self._take_step(batch)
            spent = self._spent()
            if spent < min(due, 1):
                continue
            if self._judge() == 0:
                best = copy.deepcopy(network.state_dict())
            due = spent + 1 / schedule.num_judgements
            if spent >= 1 or self._judgements_since_best() >= schedule.patience:
                break
        network.load_state_dict(best)
        network.eval()

    def _endless_batches(self) -> Iterator[B]:
        while True:
            yield from self.trainable.batches()

    def _take_step(self, batch: B) -> None:
        network = self.trainable.network.train()
        rate = self.schedule.learning_rate * self._rate(self._spent())
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad(set_to_none=True)
        loss = self.trainable.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
        nn.utils.clip_grad_norm_(network.parameters(), self.schedule.clip_norm)
        self._optimiser.step()
        self._losses.append(float(loss.detach()))
        self._step += 1

    def _spent(self) -> float:
        """Share of the budget."""
        if self.schedule.max_steps is not None:
            return self._step / self.schedule.max_steps
        return (time.monotonic() - self._start) / self.seconds

    def _rate(self, spent: float) -> float:
        warm = min(1.0, (spent + 1e-3) / self.schedule.warmup_share)
        return warm * (0.5 + 0.5 * math.cos(math.pi * min(1, spent)) if self.schedule.cosine else 1)

    def _judge(self) -> int:
        """How many judgements ago the best one was."""
        self.trainable.network.eval()
        with torch.inference_mode():
            quality = self.trainable.quality()
        mean_loss = sum(self._losses) / len(self._losses)
        minutes = (time.monotonic() - self._start) / 60
        processor_minutes = (time.process_time() - self._processor_start) / 60
        self.judgements.append(
            Judgement(self._step, minutes, processor_minutes, mean_loss, quality)
        )
        self.report(self.judgements[-1])
        self._losses.clear()
        return self._judgements_since_best()

    def _judgements_since_best(self) -> int:
        qualities = [judgement.quality for judgement in self.judgements]
        return len(qualities) - 1 - qualities.index(max(qualities))


@dataclass
class NeuralRanker(ABC, Generic[S]):
    """A Ranker but for `rank`: what those that fit a network share. Without settings it takes those that fit the data."""

    settings: S | None = None
    report: Callable[[Judgement], None] = lambda _: None
    judgements: list[Judgement] = field(default_factory=list)
    device: torch.device = field(default_factory=training_device)
    """Where networks learn and rank."""

    @abstractmethod
    def prepare(self, task: Task, budget: Budget) -> tuple[Trainable[Any], Schedule]:
        """What is fitted, and how; the subclass keeps what it ranks with. PyTorch is seeded, new tensors are on the device."""

    def fit(self, task: Task, budget: Budget) -> None:
        """Ends before `budget.minutes`, preparing and validation included."""
        start = time.monotonic()
        torch.set_num_threads(budget.num_threads)
        torch.manual_seed(budget.seed)
        with new_tensors_on(self.device):
            trainable, schedule = self.prepare(task, budget)
            seconds = 60 * budget.minutes - (time.monotonic() - start)
            fit = Fit(trainable, schedule, seconds, self.report)
            fit.run()
        self.judgements = fit.judgements

    def details(self) -> dict[str, Any]:
        """Steps made, and the validation that chose the weights."""
        best = max(self.judgements, key=lambda judgement: judgement.quality)
        return {
            "steps": self.judgements[-1].step,
            "best_step": best.step,
            "best_at_minutes": round(best.minutes, 2),
            "processor_minutes": round(self.judgements[-1].processor_minutes, 2),
            "validation_ndcg_at_10": round(best.quality, 4),
            "device": str(self.device),
        }


def products_in(bf16: bool, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16, or as everything else."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


def _decayed_apart(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases and norms do not."""
    parameters = list(network.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
