"""What is searched: a catalogue of random SIDs, a network with random weights, contexts of several lengths."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.ingest.log import START_MS, random_rows
from model.decoder import Context
from model.features import FeatureConfig, to_tensors
from model.layers import LayerConfig, Segment
from model.network import Network, NetworkConfig
from model.trie import Trie
from state.segments import HistoryConfig

RECENT_LEN = HistoryConfig().recent_len
_SKEW = 1.3  # of codes: a level's entropy is 99 % of the most there could be, about as fitted tokenizers have it


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything; the first of several is the one of the headline figures."""

    width: int = 256
    num_heads: int = 4
    ffn_width: int = 512
    num_blocks: int = 4
    num_levels: int = 3
    codebook_size: int = 1_024
    item_buckets: int = 131_072
    catalogues: tuple[int, ...] = (28_000, 1_000_000)
    """SIDs."""
    beams: tuple[int, ...] = (32, 100)
    threads: tuple[int, ...] = (1, 2)
    """With two, each of many small operators waits for the slower thread: neighbours make that ten times slower."""
    histories: tuple[int, ...] = (256, 1_024, 5_000)
    """Interactions, shortest first; the longest comes a second time, with a lifecycle summary."""
    rounds: int = 200
    """Of our own searches."""
    rival_threads: tuple[int, ...] = (1, 2)
    rival_rounds: int = 11
    case_s: float = 20.0
    """After which a case begins no further round."""

    def cases(self, threads: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Threads, SIDs and beam width of every case; the larger catalogues with the first number of threads alone."""
        for number, num_threads in enumerate(threads):
            for num_sids in self.catalogues[: 1 if number else None]:
                for beam in self.beams:
                    yield num_threads, num_sids, beam


@dataclass(frozen=True)
class History:
    """Interactions of one user."""

    name: str
    length: int
    has_summary: bool


@dataclass(frozen=True, eq=False)
class SidCatalogue:
    """SIDs in the array trie, and how often each was seen."""

    trie: Trie
    counts: npt.NDArray[np.int64]


@cache
def make_catalogue(num_sids: int, num_levels: int, codebook_size: int) -> SidCatalogue:
    """Random SIDs, some codes more common than others; counts ~ 1 / rank."""
    random = np.random.default_rng(0)
    draws = random.random((2 * num_sids, num_levels)) ** _SKEW
    distinct = np.unique((draws * codebook_size).astype(np.int64), axis=0)
    if len(distinct) < num_sids:
        raise ValueError(
            f"{num_sids} SIDs were asked for and {len(distinct)} drawn; take more codes or levels"
        )
    kept = np.sort(random.choice(len(distinct), num_sids, replace=False))
    ranks = 1 + random.permutation(num_sids)
    counts = (10 * num_sids / ranks).astype(np.int64)
    return SidCatalogue(Trie(distinct[kept], counts), counts)


@cache
def make_network(sizes: Sizes) -> Network:
    """In evaluation mode; weights do not change the cost."""
    torch.manual_seed(0)
    layer = LayerConfig(width=sizes.width, num_heads=sizes.num_heads, ffn_width=sizes.ffn_width)
    config = NetworkConfig(
        layer=layer,
        num_blocks=sizes.num_blocks,
        features=FeatureConfig(item_buckets=sizes.item_buckets),
    )
    network = Network(config, HistoryConfig(), sizes.num_levels, sizes.codebook_size)
    return network.eval().requires_grad_(False)


def histories_of(sizes: Sizes) -> list[History]:
    """Shortest first, the longest with a lifecycle summary last."""
    plain = [History(f"{length:_}", length, False) for length in sizes.histories]
    longest = sizes.histories[-1]
    return [*plain, History(f"{longest:_}_and_lifecycle", longest, True)]


class Encoder:
    """A user's rows and summary tokens to the context, as a request does it."""

    def __init__(self, network: Network, history: History) -> None:
        """Make the rows, and tokens of a chunk of older ones."""
        self._network = network
        random = np.random.default_rng(history.length)
        self._rows = random_rows(START_MS + np.arange(history.length), random)
        self._present = torch.tensor([history.has_summary])
        self._tokens_1EH = self._tokens() if history.has_summary else self._no_tokens()

    @torch.inference_mode()
    def __call__(self) -> Context:
        """Features and the three encoders; nothing is remembered."""
        items = to_tensors(self._rows, self._network.config.features)
        vectors_1NH = self._network.features(items.unsqueeze())
        mid_term_len = max(0, len(self._rows) - RECENT_LEN)
        return self._network.encode(
            _all_real(vectors_1NH[:, mid_term_len:]),
            _all_real(vectors_1NH[:, :mid_term_len]),
            self._tokens_1EH,
            self._present,
        )

    @torch.inference_mode()
    def _tokens(self) -> Tensor:
        chunk = self._rows[: HistoryConfig().chunk_len]
        items = to_tensors(chunk, self._network.config.features)
        sums = self._network.lifecycle.accumulate(self._network.features(items.unsqueeze()))
        return self._network.lifecycle.tokens(sums, torch.tensor([len(chunk)]))

    def _no_tokens(self) -> Tensor:
        return torch.zeros(1, 0, self._network.config.layer.width)


def _all_real(vectors_1NH: Tensor) -> Segment:
    return Segment(vectors_1NH, torch.ones(vectors_1NH.shape[:2], dtype=torch.bool))
