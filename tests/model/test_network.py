"""The network's streams: padding, absence, gradients of the indexer, and attention against loops."""

import pytest
import torch
from torch.nn import functional

from model.decoder import Context, as_sequences, share_bos
from model.errors import ModelConfigError
from model.layers import Attention, LayerConfig, Segment
from model.lifecycle import Reconstruction
from model.mid_term import MidTermConfig
from model.network import Network, NetworkConfig
from model.recent import RecentEncoder
from tests.model.worlds import SMALL

WIDTH = SMALL.network.layer.width
LAYER = SMALL.network.layer


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network(SMALL.network, SMALL.history, num_levels=3, codebook_size=6).eval()


def segment(num_items: int, num_real: int | None = None, seed: int = 0) -> Segment:
    """One context of random vectors; real ones last."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(num_items) >= num_items - (num_items if num_real is None else num_real)
    return Segment(torch.randn(1, num_items, WIDTH, generator=generator), mask[None])


def padded(original: Segment, num_before: int, num_behind: int = 0) -> Segment:
    before, behind = (torch.full((1, num, WIDTH), 7.0) for num in (num_before, num_behind))
    padding = (num_before, num_behind)
    return Segment(
        torch.cat([before, original.vectors, behind], 1),
        functional.pad(original.mask, padding, value=False),
    )


CODES = torch.tensor([[[1, 2], [3, 4]]])


def test_attention_matches_loops() -> None:
    attention = Attention(LayerConfig(width=6, num_heads=2, ffn_width=4))
    queries, keys = torch.randn(1, 3, 6), torch.randn(1, 5, 6)
    mask = torch.tensor([[False, True, True, False, True]])
    result = attention(queries, keys, mask)[0]
    w_q, w_o = attention.to_query.weight, attention.out.weight
    w_k, w_v = attention.to_key_value.weight.chunk(2)
    for i in range(3):
        heads = []
        for h in range(2):
            part = slice(3 * h, 3 * h + 3)
            real = [j for j in range(5) if mask[0, j]]
            scores = [
                ((w_q @ queries[0, i])[part] @ (w_k @ keys[0, j])[part]) / 3**0.5 for j in real
            ]
            weights = torch.stack(scores).softmax(0)
            heads.append(
                sum(w * (w_v @ keys[0, j])[part] for w, j in zip(weights, real, strict=True))
            )
        torch.testing.assert_close(result[i], w_o @ torch.cat(heads), atol=1e-5, rtol=1e-4)
    weights = attention.logits(queries, keys, mask).softmax(-1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 3))
    assert weights[..., ~mask[0]].abs().max() == 0


def test_padding_changes_nothing(network: Network) -> None:
    recent, mid_term, tokens = segment(6), segment(9, seed=1), segment(3, seed=2).vectors
    present = torch.ones(1, dtype=torch.bool)
    plain = network.decode(network.encode(recent, mid_term, tokens, present), CODES)
    context = network.encode(padded(recent, 2), padded(mid_term, 0, 4), tokens, present)
    torch.testing.assert_close(network.decode(context, CODES), plain, atol=1e-5, rtol=1e-4)


def test_a_mid_term_item_meets_its_own_chunk_alone(network: Network) -> None:
    """What is encoded of a sealed chunk stays as it is, whatever comes behind."""
    chunk_len = SMALL.history.chunk_len
    items = segment(3 * chunk_len + 1)
    whole = network.mid_term(items.vectors, items.mask).vectors
    for start in range(0, 3 * chunk_len, chunk_len):
        chunk = slice(start, start + chunk_len)
        alone = network.mid_term(items.vectors[:, chunk], items.mask[:, chunk]).vectors
        torch.testing.assert_close(whole[:, chunk], alone)
    changed = items.vectors.clone()
    changed[:, 1] += 1
    other = network.mid_term(changed, items.mask).vectors
    assert not torch.allclose(other[:, 0], whole[:, 0], atol=1e-4)
    torch.testing.assert_close(other[:, chunk_len:], whole[:, chunk_len:])


def test_position_counts_from_the_newest() -> None:
    encoder = RecentEncoder(LAYER, num_layers=0, max_len=8)
    items, mask = torch.zeros(1, 5, WIDTH), torch.ones(1, 5, dtype=torch.bool)
    long, short = encoder(items, mask), encoder(items[:, :2], mask[:, :2])
    torch.testing.assert_close(long.vectors[:, -2:], short.vectors)


@pytest.mark.parametrize("which", ["mid_term", "lifecycle", "recent"])
def test_absent_segments_contribute_nothing(network: Network, which: str) -> None:
    parts = {"recent": segment(6), "mid_term": segment(9, seed=1), "lifecycle": segment(3, seed=2)}
    masked = {**parts, which: Segment(parts[which].vectors, torch.zeros_like(parts[which].mask))}
    empty = Segment(torch.zeros(1, 0, WIDTH), torch.zeros(1, 0, dtype=torch.bool))
    without = {**parts, which: empty}
    states = [network.decode(Context(**chosen), CODES) for chosen in (parts, masked, without)]
    torch.testing.assert_close(states[1], states[2])
    assert not torch.allclose(states[0], states[1], atol=1e-4)
    assert all(torch.isfinite(state).all() for state in states)


def test_earlier_positions_do_not_see_later_codes(network: Network) -> None:
    context = Context(segment(6), segment(9), segment(3))
    states = network.decode(
        context,
        torch.tensor(
            [
                [[1, 2]],
            ]
        ),
    )
    others = network.decode(
        context,
        torch.tensor(
            [
                [[1, 5]],
            ]
        ),
    )
    torch.testing.assert_close(states[:, :, :2], others[:, :, :2])
    assert not torch.allclose(states[:, :, 2], others[:, :, 2], atol=1e-4)


def test_sequences_share_their_bos_and_nothing_else() -> None:
    states = torch.randn(2, 1 + 3 * 2, WIDTH)
    sequences = as_sequences(states, num_sequences=3)
    assert sequences.shape == (2, 3, 3, WIDTH)
    assert torch.equal(share_bos(sequences), states)
    assert torch.equal(sequences[:, 2, 1:], states[:, 5:])
    assert torch.equal(as_sequences(states[:, :1], 3), states[:, None, :1].expand(2, 3, 1, WIDTH))


def test_all_beams_share_one_selection(network: Network) -> None:
    context = Context(segment(6), segment(9), segment(3))
    together = network.decode(context, CODES)
    for beam in range(2):
        alone = network.decode(context, CODES[:, beam : beam + 1])
        torch.testing.assert_close(together[:, beam], alone[:, 0], atol=1e-5, rtol=1e-4)


def test_reconstruction_rebuilds_the_next_item() -> None:
    """Mean squared error between output i and item i + 1, over real pairs, by loops; causal."""
    reconstruction = Reconstruction(LAYER)
    tokens, items = torch.randn(1, 3, WIDTH), torch.randn(1, 5, WIDTH)
    mask = torch.tensor([[True, True, True, True, False]])
    whole = torch.cat([tokens, items], 1)
    errors = []
    for i in range(3):
        output = reconstruction.out(
            reconstruction.decoder(whole[:, : 3 + i + 1], None, causal=True)
        )
        errors.append((output[0, -1] - items[0, i + 1]).square().mean())
    loss = reconstruction.loss(tokens, items, mask)
    torch.testing.assert_close(loss, torch.stack(errors).mean(), atol=1e-5, rtol=1e-4)


def test_settings_outside_their_limits_name_themselves() -> None:
    with pytest.raises(ModelConfigError, match="multiple of num_heads"):
        LayerConfig(width=10, num_heads=4)
    with pytest.raises(ModelConfigError, match="top_k is 0"):
        MidTermConfig(top_k=0)
    with pytest.raises(ModelConfigError, match="divergence is 'as_printed'; it must be one of"):
        MidTermConfig(divergence="as_printed")  # type: ignore[arg-type]
    with pytest.raises(ModelConfigError, match="teacher is 'sum'"):
        MidTermConfig(teacher="sum")  # type: ignore[arg-type]
    with pytest.raises(ModelConfigError, match="residual is 'three'"):
        NetworkConfig(residual="three")  # type: ignore[arg-type]
    with pytest.raises(ModelConfigError, match="codebooks is 'one'"):
        NetworkConfig(codebooks="one")  # type: ignore[arg-type]
