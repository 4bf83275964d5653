"""The GEMs network (arXiv 2602.13631): features, three streams, one decoder. It scores; it does not search.

Shapes: B contexts, E lifecycle tokens, T code sequences per context, P positions
[BOS, codes], D levels, K codes per level, H width.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from model.code_recency import CodeRecency
from model.decoder import Context, Decoder, IndexerTrace, Residual
from model.errors import ModelConfigError
from model.features import FeatureConfig, ItemFeatures
from model.layers import LayerConfig, Segment, check_choice
from model.lifecycle import Lifecycle, LifecycleConfig
from model.mid_term import MidTermConfig, MidTermEncoder
from model.next_item import ItemRows, NextItem, NextItemConfig, NextItems
from model.recent import Positions, RecentEncoder
from model.repeat_features import RepeatCandidates
from model.repeats import RepeatConfig, RepeatEvidence, RepeatMixture, Repeats
from model.transitions import Gains
from state.segments import HistoryConfig

Codebooks = Literal["separate", "tied"]


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Everything that shapes the network's weights. Raises ModelConfigError for impossible sizes."""

    layer: LayerConfig = field(default_factory=LayerConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    mid_term: MidTermConfig = field(default_factory=MidTermConfig)
    lifecycle: LifecycleConfig = field(default_factory=LifecycleConfig)
    repeats: RepeatConfig = field(default_factory=RepeatConfig)
    next_item: NextItemConfig = field(default_factory=NextItemConfig)
    recent_layers: int = 1
    recent_positions: Positions = "newest"
    """Where recent interactions stand: a vector per distance from the newest, or a number per distance of two in attention."""
    num_blocks: int = 2
    residual: Residual = "one"
    """A block's D' counts once beside the three branches' updates, or in each of them: the paper's literal sum."""
    codebooks: Codebooks = "separate"
    """Every level has code embeddings of its own, or all levels are tied to one table (and told apart by a vector)."""
    tied_output: bool = True
    """The table that embeds a level's codes also scores them, or another one does."""
    code_recency: bool = False
    """Which first codes the nearer segments hold, and how far back, is added to the logits of first codes."""
    live_prior: bool = False
    """What the network corrects is how popular items are at the moment, instead of over all of the training."""

    def __post_init__(self) -> None:
        """Check the depths."""
        if self.num_blocks < 1 or self.recent_layers < 0:
            raise ModelConfigError(
                f"num_blocks is {self.num_blocks}: at least 1; recent_layers is {self.recent_layers}: at least 0"
            )
        check_choice("recent_positions", self.recent_positions, get_args(Positions))
        check_choice("residual", self.residual, get_args(Residual))
        check_choice("codebooks", self.codebooks, get_args(Codebooks))


class Network(nn.Module):
    """The trained module: `encode` a context once, then `decode` any number of code sequences against it."""

    def __init__(
        self, config: NetworkConfig, history: HistoryConfig, num_levels: int, codebook_size: int
    ) -> None:
        """`history` is how segments and chunks are cut; levels and codes come from the tokenizer's config."""
        super().__init__()
        self.config = config
        self.num_levels = num_levels
        layer = config.layer
        self.features = ItemFeatures(config.features, layer)
        scores_items, dropout = config.next_item.enabled, config.next_item.dropout
        self.recent = RecentEncoder(
            layer,
            config.recent_layers,
            history.recent_len,
            causal=scores_items,
            dropout=dropout if scores_items else 0.0,
            positions=config.recent_positions,
        )
        self.next_item = NextItem(layer, config.next_item) if scores_items else None
        self.mid_term = MidTermEncoder(layer, config.mid_term, history.chunk_len)
        self.lifecycle = Lifecycle(layer, config.lifecycle)
        self.decoder = Decoder(layer, config.mid_term, config.num_blocks, config.residual)
        self.repeats = Repeats(layer, config.repeats, config.features.item_buckets)
        self.bos_H = nn.Parameter(torch.randn(layer.width) * layer.width**-0.5)
        tied = config.codebooks == "tied"
        shape = (1 if tied else num_levels, codebook_size, layer.width)
        self.codebooks_DKH = nn.Parameter(torch.randn(shape) * layer.width**-0.5)
        """[1, K, H] when all levels are tied."""
        self.output_codebooks_DKH = (
            None if config.tied_output else nn.Parameter(self.codebooks_DKH.detach().clone())
        )
        self.levels_DH = (
            nn.Parameter(torch.randn(num_levels, layer.width) * layer.width**-0.5) if tied else None
        )
        self.code_recency = CodeRecency(layer.width) if config.code_recency else None

    def encode(
        self, recent: Segment, mid_term: Segment, tokens_BEH: Tensor, present_B: Tensor
    ) -> Context:
        """Item vectors (from `features`) and lifecycle tokens to what the decoder attends to.

        Recent items are right-aligned, the newest is last and padding comes first; mid-term items are left-aligned, the
        first one begins a chunk. `present_B` tells who has tokens.
        """
        return Context(
            recent=self.recent(recent.vectors, recent.mask),
            mid_term=self.mid_term(mid_term.vectors, mid_term.mask),
            lifecycle=self.lifecycle.encode(tokens_BEH, present_B),
        )

    def decode(
        self,
        context: Context,
        codes_BTP: Tensor,
        *,
        select: bool = True,
        trace: IndexerTrace | None = None,
    ) -> Tensor:
        """States [B, T, P + 1, H] for prefixes [B, T, P]: the last predicts level P, those before the levels before."""
        batch, num_sequences, _ = codes_BTP.shape
        bos = self.bos_H.expand(batch, num_sequences, 1, -1)
        embedded = torch.cat([bos, self.embed(codes_BTP)], 2)
        return self.decoder(embedded, context, select=select, trace=trace)

    def repeat_mixture(self, candidates: RepeatCandidates, states_BTPH: Tensor) -> RepeatMixture:
        """What is said for repeats in a context whose decoder states are given."""
        return self.repeat_evidence(candidates, states_BTPH[:, 0, 0]).mixture()

    def repeat_evidence(self, candidates: RepeatCandidates, bos_BH: Tensor) -> RepeatEvidence:
        """The same before anything is blocked, from the BOS states."""
        evidence: RepeatEvidence = self.repeats(
            candidates, self.features.item_vectors(candidates.rows), bos_BH
        )
        return evidence

    def next_items(
        self,
        recent: Segment,
        rows: ItemRows | None,
        bucket_starts: Tensor,
        gains: Gains | None = None,
    ) -> NextItems | None:
        """What the encoded recent segments say of a catalogue's items; None where the network scores none."""
        if self.next_item is None or rows is None or not recent.vectors.shape[1]:
            return None
        vectors_NH = self.features.item_vectors(rows.rows)
        log_probs_BN = self.next_item(recent.vectors[:, -1], vectors_NH, rows.log_shares, gains)
        weight_B = self.next_item.weight * rows.any_seen * recent.present
        return NextItems.of(log_probs_BN, weight_B, bucket_starts)

    def logits(self, states_BTH: Tensor, level: int) -> Tensor:
        """[B, T, K]: dot products with the level's codebook embeddings."""
        return states_BTH @ self.code_vectors(level).T

    def next_logits(self, states_BTH: Tensor, level: int, counts_BRK: Tensor | None) -> Tensor:
        """[B, T, K]: of the codes of a level from the states before it.

        `counts_BRK`, as from `FirstCodes`, count on level 0 where the network reads them.
        """
        logits = self.logits(states_BTH, level)
        if level or self.code_recency is None or counts_BRK is None:
            return logits
        recent_logits: Tensor = self.code_recency(states_BTH, logits, counts_BRK)
        return recent_logits

    def code_vectors(self, level: int) -> Tensor:
        """[K, H]: what scores the codes of a level."""
        tables = (
            self.codebooks_DKH if self.output_codebooks_DKH is None else self.output_codebooks_DKH
        )
        vectors: Tensor = tables[0 if self.levels_DH is not None else level]
        return vectors

    @property
    def code_tables(self) -> list[nn.Parameter]:
        """What embeds codes, and what scores them where that is another table."""
        output = self.output_codebooks_DKH
        return [self.codebooks_DKH] if output is None else [self.codebooks_DKH, output]

    @torch.no_grad()
    def set_codebooks(self, vectors_DKH: Tensor) -> None:
        """Start from the tokenizer's code vectors; one table for all levels starts from the first level's."""
        for table in self.code_tables:
            table.copy_(vectors_DKH[: len(table)])

    def embed(self, codes_BTP: Tensor, first_level: int = 0) -> Tensor:
        """[B, T, P, H]: codes of the levels from `first_level` on."""
        levels = first_level + torch.arange(codes_BTP.shape[-1], device=codes_BTP.device)
        if self.levels_DH is None:
            return self.codebooks_DKH[levels, codes_BTP]
        return self.codebooks_DKH[0, codes_BTP] + self.levels_DH[levels]

    def embed_codes(self, codes: Tensor, level: int) -> Tensor:
        """[..., H]: codes [...] of one level."""
        if self.levels_DH is None:
            return nn.functional.embedding(codes, self.codebooks_DKH[level])
        return nn.functional.embedding(codes, self.codebooks_DKH[0]) + self.levels_DH[level]
