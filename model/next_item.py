"""The next item itself: a softmax over the catalogue of what the newest recent state says of each item, beside the codes.

P(SID) = (1 - a) P_codes(SID) + a sum over its items of P_next(item),
P_next(item) = softmax over items of q(h) . e_item + log share of the item's events + b gain(item).

h is the recent stream's state of the newest interaction. The stream is causal where this is on, so that one pass predicts
what followed every interaction of a segment (SASRec, arXiv 1808.09781, with a full softmax); dense and generative
retrieval together after LIGER (arXiv 2411.18814), as a mixture, so that probabilities stay probabilities. The gain
is what counting knows (model/transitions.py); the network learns without it, since counts hold what it learns from. What
training did not see has no share: it is found by its codes alone.

Shapes: B contexts, N items of the catalogue, S SIDs, H width, ... leading dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.catalogue import Catalogue
from model.errors import ModelConfigError
from model.features import FeatureConfig, item_rows
from model.layers import LayerConfig
from model.limits import check_limits
from model.transitions import Gains
from model.trie import Trie

_NEVER = -1e9


@dataclass(frozen=True, kw_only=True)
class NextItemConfig:
    """Whether items are scored beside codes. Raises ModelConfigError for settings outside their limits."""

    enabled: bool = False
    """Costs a product with the catalogue per request: linear in it, 1 ms for some 100,000 items."""
    dropout: float = 0.2
    """Of the recent stream's updates, while training."""
    weight: float = 0.8
    """a: of what items say, the rest is of codes, which alone find new items."""
    transition_weight: float = 0.0
    """b: of what followed the newest items in training; 0: nothing is counted."""
    positions: int = 64
    """Newest interactions of a context whose next one is learned."""

    @property
    def counts_transitions(self) -> bool:
        """Whether what followed the newest items counts."""
        return self.enabled and self.transition_weight > 0

    def __post_init__(self) -> None:
        """Check the sizes and shares."""
        check_limits(self, "positions", least=1)
        check_limits(self, "transition_weight", least=0)
        if not 0 <= self.dropout < 1:
            raise ModelConfigError(
                f"dropout of next_item is {self.dropout}; it must be at least 0 and below 1"
            )
        if not 0 <= self.weight < 1:
            raise ModelConfigError(
                f"weight of next_item is {self.weight}; it must be at least 0 and below 1: codes alone find new items"
            )


@dataclass(frozen=True)
class ItemRows:
    """A catalogue's items as the network knows them."""

    rows: Tensor
    """[N, item_hashes]: of the item table."""
    log_shares: Tensor
    """[N]: of all events; so little that nothing is left where training saw none."""

    @property
    def any_seen(self) -> bool:
        """Whether training saw an item of the catalogue."""
        return bool((self.log_shares > _NEVER).any())

    @staticmethod
    def of(catalogue: Catalogue, config: FeatureConfig) -> "ItemRows":
        """In the catalogue's order."""
        counts = catalogue.counts / max(1, int(catalogue.counts.sum()))
        with np.errstate(divide="ignore"):
            shares = np.log(counts).clip(min=_NEVER).astype(np.float32)
        return ItemRows(
            torch.from_numpy(item_rows(catalogue.item_ids, config)), torch.from_numpy(shares)
        )


@dataclass(frozen=True)
class NextItems:
    """What is said of every item of a catalogue in some contexts."""

    log_probs: Tensor
    """[B, N]: log P_next; so little that nothing is left where training did not see the item."""
    weight: Tensor
    """[B]: a; 0 where a context has no recent interaction or training saw no item of the catalogue."""
    before: Tensor
    """[B, N + 1], float64: P_next of the items before each: that of a trie node, whose items are neighbours, is a difference."""
    bucket_starts: Tensor
    """[S + 1]: where each SID's items begin."""

    @staticmethod
    def of(log_probs_BN: Tensor, weight_B: Tensor, bucket_starts: Tensor) -> "NextItems":
        """With the sums that trie nodes are read from."""
        before = functional.pad(log_probs_BN.double().exp().cumsum(1), (1, 0))
        return NextItems(log_probs_BN, weight_B, before, bucket_starts)

    def of_contexts(self, places: Sequence[int]) -> "NextItems":
        """Of some of the contexts, in the order of `places`."""
        if list(places) == list(range(len(self.weight))):
            return self
        index = torch.tensor(places)
        return replace(
            self,
            log_probs=self.log_probs[index],
            weight=self.weight[index],
            before=self.before[index],
        )

    def before_sids(self, row: int) -> npt.NDArray[np.float64]:
        """[S + 1]: for one context, P_next of the items of all SIDs before each."""
        before: npt.NDArray[np.float64] = self.before[row, self.bucket_starts].numpy()
        return before

    def of_nodes(self, trie: Trie, level: int, nodes_BC: Tensor) -> Tensor:
        """[B, C]: P_next of trie nodes of `level`."""
        first, behind = trie.sids_below(level, nodes_BC)
        starts = self.bucket_starts
        return self.before.gather(1, starts[behind]) - self.before.gather(1, starts[first])

    def mix_nodes(self, trie: Trie, level: int, nodes_BC: Tensor, log_codes_BC: Tensor) -> Tensor:
        """Log P of the nodes' prefixes from that by their codes."""
        share_BC = self.of_nodes(trie, level, nodes_BC).clamp(min=0).to(log_codes_BC.dtype)
        return self.mix(log_codes_BC, share_BC.log(), self.weight[:, None])

    def log_share_of(self, row: int, items: Tensor) -> Tensor:
        """Log (a P_next) of one context's `items` [C], float64."""
        return self.weight[row].double().log() + self.log_probs[row, items].double()

    def mix_items(self, row: int, items: Tensor, log_codes: Tensor) -> Tensor:
        """Log P of one context's `items` [C] from that by their codes."""
        return self.mix(log_codes, self.log_probs[row, items].to(log_codes.dtype), self.weight[row])

    @staticmethod
    def mix(log_codes: Tensor, log_next: Tensor, weight: Tensor) -> Tensor:
        """log((1 - a) P_codes + a P_next)."""
        return torch.logaddexp(log_codes + (-weight).log1p(), log_next + weight.log())


class NextItem(nn.Module):
    """What asks for items."""

    def __init__(self, layer: LayerConfig, config: NextItemConfig) -> None:
        """Items are asked for with the state itself, to begin with."""
        super().__init__()
        self.to_query = nn.Linear(layer.width, layer.width)
        self.dropout = nn.Dropout(layer.dropout)
        self.weight, self.transition_weight = config.weight, config.transition_weight
        with torch.no_grad():
            nn.init.eye_(self.to_query.weight)
            nn.init.zeros_(self.to_query.bias)

    def forward(
        self, states_BH: Tensor, vectors_NH: Tensor, log_shares_N: Tensor, gains: Gains | None
    ) -> Tensor:
        """[B, N]: log P_next."""
        logits_BN = (self.query(states_BH) @ vectors_NH.T + log_shares_N).float()
        if gains is not None:
            gains.add_to(logits_BN, self.transition_weight)
        return logits_BN.log_softmax(-1)

    def query(self, states: Tensor) -> Tensor:
        """What items are compared with."""
        asked: Tensor = self.to_query(self.dropout(states))
        return asked
