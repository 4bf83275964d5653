"""Logits of the next code for a batch of requests' beams, one step of the network per level.

Shapes: B contexts, W beams, P codes so far, L blocks, H width, K codes per level.
"""

from collections.abc import Callable, Sequence
from functools import cache

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
        x_BWH = self._network.embed_codes(codes_BWP[..., -1], level - 1)
        mask_P = _mask(level, self._places)
        states, key_value = self._engine.step(x_BWH, own, mask_P, self._memory)
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
        rows_BW = torch.arange(batch)[:, None] * self._own.shape[2] + parents_BW
        rows = rows_BW.flatten().to(self._own.device)
        chosen = self._own.flatten(1, 2).index_select(1, rows)
        return chosen.view(-1, batch, width, *self._own.shape[3:])


@cache
def _mask(level: int, places: int) -> Tensor:
    """[places + 2]: of BOS, earlier codes and the code itself, which of them there are on a level."""
    taken_P = torch.ones(places + 2, dtype=torch.bool)
    taken_P[level : places + 1] = False
    return additive(taken_P)
