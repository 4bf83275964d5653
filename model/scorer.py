"""Logits of the next code for a batch of requests' beams, one step of the network per level.

Shapes: B contexts, W beams, P codes so far, L blocks, H width, K codes per level.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from model.engine import Engine
from model.fused_decoder import Memory, additive
from model.network import Network
from model.user_context import UserContext


class Scorer:
    """One search's memory: keys and values of the codes that its beams have taken so far."""

    def __init__(
        self,
        network: Network,
        engine: Engine,
        contexts: Sequence[UserContext],
        check: Callable[[], None],
    ) -> None:
        """`check` is called before every step; what it raises ends the search."""
        self._network = network
        self._engine = engine
        self._check = check
        self._memory = Memory.join([context.memory for context in contexts])
        self.first_logits = torch.cat([context.first_logits for context in contexts])
        self._places = max(0, network.num_levels - 2)
        self._own: Tensor | None = None

    def score_next(self, codes_BWP: Tensor, parents_BW: Tensor) -> Tensor:
        """[B, W, K]: see model.beam_search.ScoreNext."""
        level = codes_BWP.shape[-1]
        if not level:
            self._check()
            return self.first_logits
        return self._network.logits(self.next_states(codes_BWP, parents_BW), level)

    def code_vectors(self, level: int) -> Tensor:
        """[K, H]: a code's logit is its product with a state."""
        return self._network.code_vectors(level).detach()

    def next_states(self, codes_BWP: Tensor, parents_BW: Tensor) -> Tensor:
        """[B, W, H]: what predicts the code behind prefixes of at least one; the next call overwrites it."""
        self._check()
        level = codes_BWP.shape[-1]
        own = self._reordered(codes_BWP, parents_BW)
        taken_P = torch.ones(self._places + 2, dtype=torch.bool)
        taken_P[level : self._places + 1] = False
        x_BWH = self._network.embed(codes_BWP[..., -1:], level - 1)[:, :, 0]
        states, key_value = self._engine.step(x_BWH, own, additive(taken_P), self._memory)
        if level <= self._places:
            own[:, :, :, level - 1] = key_value
        self._own = own
        return states

    def _reordered(self, codes_BWP: Tensor, parents_BW: Tensor) -> Tensor:
        """[L, B, W, places, 2, A, C]: of the beam that each beam continues."""
        batch, width, _ = codes_BWP.shape
        if self._own is None:
            bos = self._memory.bos  # [B, L, 2, A, C]
            shape = (bos.shape[1], batch, width, self._places, *bos.shape[2:])
            return bos.new_zeros(shape)
        rows = torch.arange(batch)[:, None]
        device = self._own.device
        return self._own[:, rows.to(device), parents_BW.to(device)]
