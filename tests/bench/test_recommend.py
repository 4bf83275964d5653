"""The recommend bench: rivals do the same job as ours, and every section gives its figures on tiny sizes."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.recommend import __main__ as command, floor, hf_t5
from bench.recommend.bundle import write_bundle
from bench.recommend.client import Answers, ProcessorClock
from bench.recommend.engines import ENGINES, STEPS, eager_scores, served
from bench.recommend.nodes import make_lives
from bench.recommend.python_trie import make_python_trie, python_beam_search
from bench.recommend.world import Sizes, User, histories_of, make_catalogue, make_network
from model.beam_search import beam_search
from model.decoder import DecoderBlock
from model.layers import LayerConfig
from model.network import Network, NetworkConfig
from protos import recommender_pb2
from state.segments import HistoryConfig

TINY = Sizes(
    width=16,
    num_heads=2,
    ffn_width=16,
    num_blocks=1,
    codebook_size=16,
    item_buckets=257,
    catalogues=(300,),
    beams=(8,),
    threads=(1,),
    histories=(20, 300),
    rounds=5,
    rival_threads=(1,),
    rival_rounds=2,
    step_beams=(8,),
    step_batches=(1,),
    with_torch_compile=False,
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
    user = User(TINY, histories_of(TINY)[-1])
    found = ENGINES[engine](TINY, catalogue.trie, 300)(user)
    with torch.inference_mode():
        expected = beam_search(eager_scores(network, user.context), catalogue.trie, 1, 300)
    tolerance = 0.1 if engine.endswith("bf16") else 1e-4
    by_sid = (beams.log_probs[0, beams.sids[0].argsort()] for beams in (found, expected))
    torch.testing.assert_close(*by_sid, atol=tolerance, rtol=0)


def test_counted_work_is_the_linear_layers_work() -> None:
    config = NetworkConfig(layer=LayerConfig(width=16, num_heads=2, ffn_width=24))
    network = Network(config, HistoryConfig(), 3, 32)
    keys = 256 + 44 + 16
    one_row, two_rows = (floor.work_of(network, keys, [rows]) for rows in (1, 2))
    block = network.decoder.blocks[0]
    assert isinstance(block, DecoderBlock)
    linear = [m.weight for _, m in block.named_modules() if isinstance(m, torch.nn.Linear)]
    of_keys = 3 * 2 * 16 * 16
    of_indexer = sum(p.numel() for n, p in block.indexer.named_parameters() if "bias" not in n)
    of_row = sum(weight.numel() for weight in linear) - of_keys - of_indexer
    assert two_rows.flops - one_row.flops == 2 * (2 * (of_row + 2 * keys * 16)) + 2 * 16 * 32
    assert two_rows.numbers_read == one_row.numbers_read


@pytest.mark.slow
def test_every_section_gives_its_figures() -> None:
    names = [name for name in command.SECTIONS if name != "end_to_end"]  # which starts real nodes
    try:
        hf_t5.require_transformers()
    except SystemExit:
        names.remove("search_rivals")
    figures = command.measure(TINY, names)
    expected = {"search_p50_ms_beam8", "search_p99_ms_beam8", "engine_served"}
    expected |= {"search_flatness", "search_ratio_to_eager", "search_share_of_floor"}
    expected |= {"search_ratio_to_python_trie", *names}
    assert expected <= figures.keys()
    assert figures["search_share_of_eager_sids"] > 0.5
    numbers = itertools.chain.from_iterable(map(_numbers, figures.values()))
    assert all(np.isfinite(number) and number >= 0 for number in numbers)
    json.dumps(figures)


def test_the_served_engine_is_one_that_nodes_choose_from() -> None:
    assert served(TINY, 8, 1) in STEPS


def test_an_answer_that_is_not_personal_ends_the_bench() -> None:
    answers = Answers()
    personal = recommender_pb2.RecommendResponse(
        source=recommender_pb2.SOURCE_PERSONAL, timings_ms={"search": 2.0}
    )
    answers.add(5.0, personal)
    answers.add(7.0, personal)
    assert answers.figures()["p50_ms"] == 6
    assert answers.figures()["stages_p50_ms"] == {"search": 2}
    popular = recommender_pb2.RecommendResponse(source=recommender_pb2.SOURCE_POPULAR)
    with pytest.raises(SystemExit, match="not personal"):
        answers.add(1.0, popular)


def test_users_of_one_length_have_lived_alike() -> None:
    log = make_lives({3: ["a", "b"], 5: ["c"]}, num_items=100)
    by_user = [log.rows[log.user_index == number] for number in range(3)]
    assert [len(rows) for rows in by_user] == [3, 3, 5]
    assert by_user[0]["item_id"].tolist() == by_user[1]["item_id"].tolist()
    assert 1 <= log.rows["item_id"].min() <= log.rows["item_id"].max() <= 100
    assert len(set(log.event_ids)) == len(set(log.rows["event_hash"].tolist())) == 11


def test_a_written_bundle_can_be_read(tmp_path: Path) -> None:
    bundle = write_bundle(TINY, 300, tmp_path / "bundle")
    assert len(bundle.catalogue) == bundle.trie.num_sids == 300
    assert bundle.network.config == make_network(TINY).config


def test_processor_time_of_other_processes_counts() -> None:
    code = "import sys; sum(range(10**7)); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert ProcessorClock([child.pid])() > ProcessorClock([])() + 0.01
        child.communicate()


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
