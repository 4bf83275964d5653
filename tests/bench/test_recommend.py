"""The recommend bench: rivals do the same job as ours, and every section gives its figures on tiny sizes."""

import itertools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.recommend import __main__ as command, floor, hf_t5
from bench.recommend.engines import ENGINES, eager_scores
from bench.recommend.python_trie import make_python_trie, python_beam_search
from bench.recommend.world import Encoder, Sizes, histories_of, make_catalogue, make_network
from model.beam_search import beam_search
from model.decoder import DecoderBlock
from model.layers import LayerConfig
from model.network import Network, NetworkConfig
from state.segments import HistoryConfig

TINY = Sizes(
    width=16,
    num_heads=2,
    ffn_width=16,
    num_blocks=1,
    codebook_size=16,
    item_buckets=257,
    catalogues=(300,),
    beams=(8, 12),
    threads=(1,),
    histories=(20, 300),
    rounds=5,
    rival_threads=(1,),
    rival_rounds=2,
)


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_python_trie_finds_the_same_beams() -> None:
    catalogue = make_catalogue(300, 3, 16)
    trie = make_python_trie(catalogue)
    logits = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))

    def score_next(codes: Tensor, _: Tensor) -> Tensor:
        level = codes.shape[-1]
        last = codes[..., -1] if level else torch.zeros(codes.shape[:2], dtype=torch.int64)
        return logits[level, last]

    for beam_width in (1, 8, 300):
        expected = beam_search(score_next, catalogue.trie, 1, beam_width)
        codes, log_probs = python_beam_search(score_next, trie, beam_width)
        assert [list(sid) for sid in codes] == expected.codes[0, : len(codes)].tolist()
        torch.testing.assert_close(log_probs, expected.log_probs[0, : len(codes)])
        assert bool((expected.log_probs[0, len(codes) :] == -math.inf).all())


def test_the_t5_generates_distinct_sids_of_the_catalogue() -> None:
    pytest.importorskip("transformers")
    catalogue = make_catalogue(300, 3, 16)
    rival = hf_t5.T5Rival(TINY, make_python_trie(catalogue), torch.float32, 60, 8)
    known = {tuple(sid) for sid in catalogue.trie.codes_of(torch.arange(300)).tolist()}
    for found in (rival.search(), rival.search(), rival.encode_and_search()):
        sids = {tuple(sid) for sid in found.tolist()}
        assert found.shape == (8, 3)
        assert len(sids) == 8
        assert sids <= known


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_finds_what_the_network_scores_best(engine: str) -> None:
    network, catalogue = make_network(TINY), make_catalogue(300, 3, 16)
    context = Encoder(network, histories_of(TINY)[-1])()
    found = ENGINES[engine](network, catalogue.trie, 300)(context)
    with torch.inference_mode():
        expected = beam_search(eager_scores(network, context), catalogue.trie, 1, 300)
    torch.testing.assert_close(found.log_probs, expected.log_probs)


def test_counted_work_is_the_linear_layers_work() -> None:
    config = NetworkConfig(layer=LayerConfig(width=16, num_heads=2, ffn_width=24))
    network = Network(config, HistoryConfig(), 3, 32)
    context = Encoder(network, histories_of(TINY)[-1])()
    one_row, two_rows = (floor.work_of(network, context, 2, beam) for beam in (0, 1))
    block = network.decoder.blocks[0]
    assert isinstance(block, DecoderBlock)
    linear = [m.weight for _, m in block.named_modules() if isinstance(m, torch.nn.Linear)]
    keys = 256 + 44 + 16
    of_keys = 3 * 2 * 16 * 16
    of_indexer = sum(p.numel() for n, p in block.indexer.named_parameters() if "bias" not in n)
    of_row = sum(weight.numel() for weight in linear) - of_keys - of_indexer
    expected = 2 * (2 * (of_row + 2 * keys * 16)) + 2 * 16 * 32
    assert two_rows.row_flops - one_row.row_flops == expected
    assert two_rows.key_flops == one_row.key_flops == 2 * 2 * (keys * 2 * 16 * 16 + 44 * 16)


def test_every_section_gives_its_figures() -> None:
    names = list(command.SECTIONS)
    try:
        hf_t5.require_transformers()
    except SystemExit:
        names.remove("search_rivals")
    figures = command.measure(TINY, names)
    expected = {"search_p50_ms_beam8", "search_p99_ms_beam8", "search_p50_ms_beam12"}
    expected |= {"search_flatness", "search_ratio_to_eager", "search_share_of_floor"}
    expected |= {"search_ratio_to_python_trie", *names}
    assert expected <= figures.keys()
    assert figures["search_share_of_eager_sids"] == 1
    numbers = itertools.chain.from_iterable(map(_numbers, figures.values()))
    assert all(np.isfinite(number) and number >= 0 for number in numbers)
    json.dumps(figures)


def test_without_transformers_there_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="--group bench"):
        hf_t5.require_transformers()


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, int | float):
        yield value
