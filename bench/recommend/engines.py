"""What is compared as an engine: a user in, beams out. A further one is a function and a line in ENGINES."""

from collections.abc import Callable
from functools import cache, partial
from typing import get_args

import torch
from torch import Tensor

from bench.recommend.world import History, Sizes, User, make_fused, make_network
from model.beam_search import Beams, ScoreNext, beam_search
from model.decoder import Context
from model.engine import Engine as StepEngine, TorchEngine
from model.engine_choice import EngineChoice
from model.engine_config import EngineConfig, Precision
from model.network import Network
from model.openvino_engine import OpenVinoEngine
from model.scorer import Scorer
from model.trie import Trie

Engine = Callable[[User], Beams]
EngineMaker = Callable[[Sizes, Trie, int], Engine]
"""From sizes, trie and beam width; may take its time: making an engine is not measured."""

EAGER = "eager"


class EveryCode(Trie):
    """A trie of which a search asks for logits that say nothing, too: as the rivals do, and ours once did."""

    def __init__(self, trie: Trie) -> None:
        """The same arrays."""
        vars(self).update(vars(trie))

    def is_forced(self, level: int, nodes: Tensor) -> Tensor:
        """Never."""
        return torch.zeros_like(nodes, dtype=torch.bool)


def decoded_rows(network: Network, context: Context, trie: Trie, beam_width: int) -> list[int]:
    """Of each step, the states that a search cannot do without; BOS apart."""
    rows: list[int] = []
    scores = eager_scores(network, context)

    def score_next(codes_1WP: Tensor, parents_1W: Tensor) -> Tensor:
        if codes_1WP.shape[-1]:
            rows.append(codes_1WP.shape[1])
        return scores(codes_1WP, parents_1W)

    with torch.inference_mode():
        beam_search(score_next, trie, 1, beam_width)
    return rows


def eager(sizes: Sizes, trie: Trie, beam_width: int) -> Engine:
    """The network's plain modules, one prefix length after the other, every code of every beam."""
    network, trie = make_network(sizes), EveryCode(trie)

    @torch.inference_mode()
    def search(user: User) -> Beams:
        return beam_search(eager_scores(network, user.context), trie, 1, beam_width)

    return search


def eager_scores(network: Network, context: Context) -> ScoreNext:
    """The logits of the next level for any prefixes."""

    def score_next(codes_1WP: Tensor, _: Tensor) -> Tensor:
        states = network.decode(context, codes_1WP)
        return network.logits(states[:, :, -1], codes_1WP.shape[-1])

    return score_next


def fused(name: str, sizes: Sizes, trie: Trie, beam_width: int) -> Engine:
    """The fused decoder over kept keys and values, as nodes serve; `name` is that of STEPS."""
    network = make_network(sizes)
    step = _kept_step(name, sizes, beam_width, torch.get_num_threads())

    @torch.inference_mode()
    def search(user: User) -> Beams:
        scorer = Scorer(network, step, [user.user_context], lambda: None)
        return beam_search(scorer.score_next, trie, 1, beam_width)

    return search


def make_step(name: str, sizes: Sizes, beam_width: int, num_threads: int) -> StepEngine:
    """What runs the fused decoder; OpenVINO compiles for the number of beams and threads."""
    library, precision = STEPS[name]
    if library == "torch":
        return TorchEngine(make_fused(sizes), precision)
    return OpenVinoEngine(make_fused(sizes), beam_width, precision, num_threads)


_kept_step = cache(make_step)  # sections share what is compiled


@cache
def served(sizes: Sizes, beam_width: int, num_threads: int) -> str:
    """Which of ENGINES a node with so many beams and threads takes, chosen as it chooses: the one of the headlines."""
    choice = EngineChoice(EngineConfig(), beam_width, 1, num_threads)
    memory = User(sizes, History("nobody", 0, has_summary=False)).user_context.memory
    return choice(make_fused(sizes), memory, max(0, sizes.num_levels - 2)).name


STEPS: dict[str, tuple[str, Precision]] = {
    f"{library} {precision}": (library, precision)
    for library in ("torch", "openvino")
    for precision in get_args(Precision)
    if precision == "fp32" or OpenVinoEngine.has_bf16()  # nodes do not try it elsewhere, either
}
ENGINES: dict[str, EngineMaker] = {EAGER: eager, **{name: partial(fused, name) for name in STEPS}}
