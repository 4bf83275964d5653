"""What arithmetic costs: bf16 matrix products where they pay, and layers that compute again instead of remembering."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.decoder import StreamBranch
from model.features import ItemFeatures
from model.layers import EncoderLayer
from model.network import Network

Precision = Literal["fp32", "bf16"]
_MIN_GAIN = 0.9  # bf16 has to take less than this share of the time to be worth its rounding
_BF16_CAPABILITIES = ("avx512_bf16", "amx_bf16", "sve_bf16")


def has_bf16(device: torch.device) -> bool:
    """Whether the processor multiplies bf16 matrices itself."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in _BF16_CAPABILITIES)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in `precision`; weights, gradients and sums of losses stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def faster_precision(attempt: Callable[[Precision], object], device: torch.device) -> Precision:
    """Time `attempt` (one forward and backward pass) in both precisions, where the processor has both."""
    if not has_bf16(device):
        return "fp32"
    seconds = {}
    precisions: tuple[Precision, Precision] = ("fp32", "bf16")
    for precision in precisions:
        attempt(precision)  # the first call also sets things up
        start = time.perf_counter()
        attempt(precision)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds[precision] = time.perf_counter() - start
    return "bf16" if seconds["bf16"] < _MIN_GAIN * seconds["fp32"] else "fp32"


def recompute_activations(network: Network) -> None:
    """Gradient checkpointing of the layers whose activations grow with the history."""
    for module in network.modules():
        if isinstance(module, (ItemFeatures, EncoderLayer, StreamBranch)):
            _recompute(module)


def _recompute(module: nn.Module) -> None:
    forward = module.forward
    recomputed = partial(checkpoint, forward, use_reentrant=False)

    def choose(*args: object, **kwargs: object) -> object:
        return (recomputed if torch.is_grad_enabled() else forward)(*args, **kwargs)

    module.forward = choose
