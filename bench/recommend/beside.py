"""Our nodes, asked over gRPC, beside a T5's `generate` and the plain decoder, which get their input for nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from bench.recommend.alternate import alternate
from bench.recommend.client import Caller, ProcessorClock
from bench.recommend.engines import EveryCode, decoded_rows, eager_scores
from bench.recommend.floor import floor_of
from bench.recommend.hf_t5 import T5Rival, require_transformers
from bench.recommend.nodes import Nodes
from bench.recommend.python_trie import make_python_trie
from bench.recommend.rivals import PRECISIONS
from bench.recommend.world import Sizes, make_catalogue
from model.beam_search import beam_search
from model.context_encoder import ContextEncoder
from model.fused_decoder import FusedDecoder
from services.clients import StateClient
from state.user_delta import split_state
from state.user_state import UserState

_TIMEOUT_S = 30.0
_BLOCK = 8
"""Of our requests in one turn: a rival's turn is long enough to fill the caches with what it needs, ours alone would not be."""


def measure(nodes: Nodes, sizes: Sizes, beam: int) -> dict[str, Any]:
    """`ratio_to_hf_t5`, `..._with_encoder`, `ratio_to_eager`, `share_of_floor` of one beam width; in turns.

    Ours: a request of a user with the longest life, of whom nothing changed. The T5: 256 interactions.
    """
    require_transformers()
    user = nodes.users[max(sizes.lives)][0]
    state = asyncio.run(_read(nodes, user))
    network, trie = nodes.bundle.network, nodes.bundle.trie
    encoder = ContextEncoder(nodes.bundle, FusedDecoder(network.decoder).eval())
    encoded, _ = encoder.encode(split_state(state, nodes.bundle.history))
    context, num_keys = encoder.as_context(encoded), encoded.num_keys[0]

    every_code = EveryCode(trie)

    @torch.inference_mode()
    def eager() -> None:
        beam_search(eager_scores(network, context), every_code, 1, beam)

    with Caller(nodes.inference[beam].address) as caller:

        def ours() -> None:
            for _ in range(_BLOCK):
                caller.ask(user)

        runs: dict[str, Callable[[], object]] = {
            "ours": ours,
            "eager": eager,
            **_t5(sizes, beam),
        }
        pids = [nodes.inference[beam].watched.pid, nodes.state.watched.pid]
        clocks = {"ours": ProcessorClock(pids)}
        times = alternate(
            runs, sizes.rival_rounds, f"beside, beam {beam}", 2 * sizes.case_s, clocks
        )
    measured: dict[str, Any] = {
        name: of_run.figures(_BLOCK if name == "ours" else 1) for name, of_run in times.items()
    }
    floor = floor_of(sizes, num_keys, decoded_rows(network, context, trie, beam))
    share = floor["floor_ms"] / measured["ours"]["undisturbed_p50_ms"]
    return {**measured, **_ratios(measured), "floor": floor, "share_of_floor": round(share, 3)}


def _t5(sizes: Sizes, beam: int) -> dict[str, Callable[[], object]]:
    """As in search_rivals, on as many items as the nodes have."""
    catalogue = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size)
    trie, num_tokens = make_python_trie(catalogue), sizes.histories[0] * sizes.num_levels
    runs: dict[str, Callable[[], object]] = {}
    for precision, dtype in PRECISIONS.items():
        rival = T5Rival(sizes, trie, dtype, num_tokens, beam)
        runs[f"t5_{precision}"] = rival.search
        runs[f"t5_with_encoder_{precision}"] = rival.encode_and_search
    return runs


def _ratios(measured: dict[str, dict[str, float]]) -> dict[str, float]:
    """The rival's better precision over ours; by processor time where one thread works, and by wall time."""
    rivals = {"hf_t5": "t5", "hf_t5_with_encoder": "t5_with_encoder", "eager": "eager"}
    found = {}
    for suffix, quantile in (("", "undisturbed_p50_ms"), ("_wall", "p50_ms")):
        for name, prefix in rivals.items():
            names = [prefix, *(f"{prefix}_{precision}" for precision in PRECISIONS)]
            rival_ms = min(measured[one][quantile] for one in names if one in measured)
            found[f"ratio_to_{name}{suffix}"] = round(rival_ms / measured["ours"][quantile], 2)
    return found


async def _read(nodes: Nodes, user: str) -> UserState:
    async with StateClient(nodes.state.address, _TIMEOUT_S) as client:
        state = await client.read_user(user, nodes.bundle.version)
    assert state is not None, f"{user} is not there"
    return state
