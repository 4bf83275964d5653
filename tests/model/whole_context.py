"""A user's whole history through the network at once: for explanations, and the plain twin of contexts that grow."""

import torch
from torch import Tensor

from model.bundle import Bundle
from model.decoder import Context
from model.features import to_tensors
from model.layers import Segment
from state.summary import Summary
from state.user_state import UserState


@torch.inference_mode()
def whole_context(bundle: Bundle, state: UserState) -> Context:
    """What the decoder attends to, encoded anew."""
    network, num_recent = bundle.network, len(state.recent(bundle.history))
    vectors_1NH = network.features(to_tensors(state.rows, network.config.features).unsqueeze())
    mid_term_len = len(state.rows) - num_recent
    tokens_1EH, present_1 = _tokens(bundle, state.summary)
    return network.encode(
        _all_real(vectors_1NH[:, mid_term_len:]),
        _all_real(vectors_1NH[:, :mid_term_len]),
        tokens_1EH,
        present_1,
    )


def _tokens(bundle: Bundle, summary: Summary | None) -> tuple[Tensor, Tensor]:
    """A summary means something under the bundle that it was made for alone."""
    if summary is None or summary.bundle_version != bundle.version or not summary.count:
        width = bundle.network.config.layer.width
        return torch.zeros(1, 0, width), torch.zeros(1, dtype=torch.bool)
    return torch.from_numpy(summary.tokens.copy())[None], torch.ones(1, dtype=torch.bool)


def _all_real(vectors_1NH: Tensor) -> Segment:
    return Segment(vectors_1NH, torch.ones(vectors_1NH.shape[:2], dtype=torch.bool))
