"""What is searched: a catalogue of random SIDs, a network with random weights, contexts of several lengths."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from bench.ingest.log import START_MS, random_rows
from model.bundle import Bundle
from model.compression import Compressor
from model.context_encoder import ContextEncoder
from model.decoder import Context
from model.features import FeatureConfig
from model.fused_decoder import FusedDecoder
from model.layers import LayerConfig
from model.network import Network, NetworkConfig
from model.trie import Trie
from model.user_context import UserContext
from state.segments import HistoryConfig
from state.user_delta import split_state
from state.user_state import UserMeta, UserState

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
    step_beams: tuple[int, ...] = (32, 100)
    step_batches: tuple[int, ...] = (1, 4)
    """Requests in one step."""
    with_torch_compile: bool = True
    """Which takes half a minute per precision and case."""
    lives: tuple[int, ...] = (300, 5_000, 20_000, 100_000)
    """Interactions of the users that real nodes serve; the headline is the longest's, flatness that over 5,000's."""
    users_per_life: int = 8
    max_batch: int = 8
    """Of the nodes; every size that they may meet is compiled before they serve."""
    concurrencies: tuple[int, ...] = (1, 4, 16)
    load_s: float = 4.0
    """Of each measurement with several requests at once."""
    moves: int = 12
    """Times that every user gets an event and asks again."""
    ingest_per_s: int = 2_000
    """Events of others, while requests are measured beside ingest."""
    p99_bound_ms: float = 100.0

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


class User:
    """A user as of one state; encoded when an engine first asks, in the form that the engine takes."""

    def __init__(self, sizes: Sizes, history: History) -> None:
        """Take the state; nothing is encoded."""
        self._bundle, self._state = make_unsaved_bundle(sizes), make_state(sizes, history)
        self._encoder = ContextEncoder(self._bundle, make_fused(sizes))

    @cached_property
    def context(self) -> Context:
        """What the plain modules attend to: the whole history, encoded."""
        return self._encoder.as_context(self.user_context)

    @cached_property
    def user_context(self) -> UserContext:
        """What is served from: keys and values of all blocks. Nothing is taken over from an earlier one."""
        segments = split_state(self._state, self._bundle.history)
        return self._encoder.encode(segments)[0]

    def encoded(self) -> "User":
        """The same with everything encoded."""
        _ = self.context, self.user_context
        return self


@cache
def make_fused(sizes: Sizes) -> FusedDecoder:
    """The network's decoder in the form that is served."""
    return FusedDecoder(make_network(sizes).decoder).eval()


def make_unsaved_bundle(sizes: Sizes) -> Bundle:
    """As much of a bundle as encoding needs."""
    return cast(
        "Bundle",
        SimpleNamespace(version="bench", network=make_network(sizes), history=HistoryConfig()),
    )


@cache
def make_state(sizes: Sizes, history: History) -> UserState:
    """`history.length` interactions as rows, and a summary of one chunk before them where there is to be one."""
    config, random = HistoryConfig(), np.random.default_rng(history.length)
    boundary = config.chunk_len if history.has_summary else 0
    rows = random_rows(START_MS + np.arange(boundary + history.length), random)
    summary = None
    if history.has_summary:
        compressor = Compressor(make_unsaved_bundle(sizes))
        summary = compressor.roll(None, [rows[:boundary]], boundary, now_ms=0)
    meta = UserMeta(
        version=len(rows),
        length=len(rows),
        lifecycle_boundary=boundary,
        tail_start=boundary + config.tail_start(history.length),
    )
    return UserState("someone", meta, rows[boundary:], summary)
