"""What is compressed: synthetic histories of whole chunks, and a network of the default sizes with random weights."""

import copy
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from bench.ingest.log import make_log
from model.bundle import Bundle
from model.compression import Compressor
from model.features import ItemTensors, to_tensors
from model.layers import LayerConfig
from model.lifecycle import LifecycleConfig
from model.network import Network, NetworkConfig
from model.quasi_linear import Delta
from state.interaction import Rows
from state.segments import HistoryConfig
from state.summary import Summary

CHUNK_LEN = HistoryConfig().chunk_len


def make_compressor(delta: Delta, width: int) -> Compressor:
    """Of an untrained network: weights do not change the cost."""
    torch.manual_seed(0)
    config = NetworkConfig(
        layer=LayerConfig(width=width, ffn_width=2 * width), lifecycle=LifecycleConfig(delta=delta)
    )
    network = Network(config, HistoryConfig(), num_levels=3, codebook_size=256)
    bundle = SimpleNamespace(version="bench", network=network.eval().requires_grad_(False))
    return Compressor(cast("Bundle", bundle))


class History:
    """A lifecycle segment of about `length` interactions, in whole chunks."""

    def __init__(self, compressor: Compressor, length: int) -> None:
        """Compress all but the newest chunk."""
        num_chunks = length // CHUNK_LEN
        self.length = num_chunks * CHUNK_LEN
        self.rows: Rows = make_log(self.length, 1, seed=length).rows
        self.chunks = [chunk.copy() for chunk in np.split(self.rows, num_chunks)]
        self.base: Summary = compressor.roll(
            None, self.chunks[:-1], self.length - CHUNK_LEN, now_ms=0
        )
        self.newest: Summary = compressor.roll(self.base, self.chunks[-1:], self.length, now_ms=0)


def one_shot_tokens(compressor: Compressor, history: History) -> npt.NDArray[np.float64]:
    """The tokens of all interactions in one sum, with the network itself in float64."""
    network = copy.deepcopy(compressor.network).double()
    items = to_tensors(history.rows, network.config.features)
    with torch.inference_mode():
        vectors = network.features(ItemTensors(items.ids, items.dense.double()).unsqueeze())
        sums = network.lifecycle.accumulate(vectors)
        tokens = network.lifecycle.tokens(sums, torch.tensor([history.length]))
    return cast("npt.NDArray[np.float64]", tokens[0].numpy())
