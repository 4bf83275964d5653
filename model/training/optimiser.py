"""AdamW over groups of parameters that are clipped one by one, and its state as named tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.network import Network
from model.training.data_parallel import Workers

_MAX_GRADIENT_NORM = 1.0
_PREFIX = "optimiser/"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate and are clipped together."""

    parameters: Sequence[Tensor]
    rate_factor: float = 1.0
    weight_decay: float = 0.0


class Optimiser:
    """One AdamW for the whole run."""

    def __init__(self, network: Network, groups: Sequence[ParameterGroup]) -> None:
        """Nothing learnt yet."""
        self._groups = groups
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._parameters = [p for group in groups for p in group.parameters]
        self._names = [names[id(parameter)] for parameter in self._parameters]
        self._adam = torch.optim.AdamW(
            [{"params": group.parameters, "weight_decay": group.weight_decay} for group in groups],
            fused=True,
        )

    def step(self, learning_rate: float, workers: Workers) -> float:
        """Move the weights along the gradients of all processes; returns the gradients' norm before clipping."""
        workers.sum_gradients(self._parameters)
        norms = [
            nn.utils.clip_grad_norm_(group.parameters, _MAX_GRADIENT_NORM) for group in self._groups
        ]
        for settings, group in zip(self._adam.param_groups, self._groups, strict=True):
            settings["lr"] = learning_rate * group.rate_factor
        self._adam.step()
        self.forget_gradients()
        return float(torch.stack(norms).square().sum().sqrt())

    def forget_gradients(self) -> None:
        """As if nothing had been computed."""
        self._adam.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """What was learnt about each parameter, by its name."""
        state = self._adam.state_dict()["state"]
        return {
            f"{_PREFIX}{self._names[index]}/{what}": tensor
            for index, tensors in state.items()
            for what, tensor in tensors.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over `tensors()` of an optimiser of the same network."""
        state: dict[int, dict[str, Tensor]] = {}
        places = {name: index for index, name in enumerate(self._names)}
        for key, tensor in tensors.items():
            if key.startswith(_PREFIX):
                name, what = key.removeprefix(_PREFIX).rsplit("/", 1)
                state.setdefault(places[name], {})[what] = tensor
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": state, "param_groups": groups})
