"""The lifecycle stream: sums that do not care how a life is cut, lengths that do not show, tokens that remember."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.accumulators import Accumulators
from model.errors import ModelConfigError
from model.layers import LayerConfig, Segment
from model.lifecycle import Lifecycle, LifecycleConfig
from model.quasi_linear import Delta

WIDTH = 16
LAYER = LayerConfig(width=WIDTH, num_heads=2, ffn_width=16, dropout=0.0)
NUM_ITEMS = 50
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}


def make_lifecycle(delta: Delta = "self", dtype: torch.dtype = torch.float32) -> Lifecycle:
    torch.manual_seed(3)
    config = LifecycleConfig(num_queries=4, delta=delta, top_r=3, reconstruction_len=4)
    return Lifecycle(LAYER, config).to(dtype).eval()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def total(parts: list[Accumulators]) -> Accumulators:
    sums = parts[0]
    for part in parts[1:]:
        sums = sums + part
    return sums


@st.composite
def shuffled_parts(draw: st.DrawFn) -> list[Tensor]:
    """[0, NUM_ITEMS) in parts of any size, items and parts in any order."""
    order = torch.tensor(draw(st.permutations(range(NUM_ITEMS))))
    cuts = sorted(draw(st.sets(st.integers(1, NUM_ITEMS - 1), max_size=12)))
    return list(torch.tensor_split(order, cuts))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("delta", get_args(Delta))
@settings(max_examples=25, deadline=None)
@given(parts=shuffled_parts())
def test_parts_in_any_order_equal_the_whole(
    delta: Delta, dtype: torch.dtype, parts: list[Tensor]
) -> None:
    lifecycle, items = make_lifecycle(delta, dtype), randn(1, NUM_ITEMS, WIDTH).to(dtype)
    count = torch.tensor([NUM_ITEMS])
    with torch.inference_mode():
        whole = lifecycle.tokens(lifecycle.accumulate(items, dtype=torch.float64), count)
        sums = [lifecycle.accumulate(items[:, part], dtype=torch.float64) for part in parts]
        half = len(sums) // 2
        halves = [total(chosen) for chosen in (sums[:half], sums[half:]) if chosen]
        for made in (total(sums), total(halves), total(sums[::-1])):
            tokens = lifecycle.tokens(made, count)
            torch.testing.assert_close(tokens, whole, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("delta", ["self", "none"])
@settings(max_examples=25, deadline=None)
@given(gone=st.sets(st.integers(0, NUM_ITEMS - 1), min_size=1, max_size=NUM_ITEMS - 1))
def test_what_is_subtracted_was_never_there(
    delta: Delta, dtype: torch.dtype, gone: set[int]
) -> None:
    lifecycle, items = make_lifecycle(delta, dtype), randn(1, NUM_ITEMS, WIDTH).to(dtype)
    left = [i for i in range(NUM_ITEMS) if i not in gone]
    with torch.inference_mode():
        whole = lifecycle.accumulate(items, dtype=torch.float64).state
        removed = lifecycle.accumulate(items[:, sorted(gone)], dtype=torch.float64).state
        expected = lifecycle.accumulate(items[:, left], dtype=torch.float64)
        count = torch.tensor([len(left)])
        torch.testing.assert_close(
            lifecycle.tokens(Accumulators(whole - removed, None), count),
            lifecycle.tokens(expected, count),
            atol=TOLERANCE[dtype],
            rtol=0,
        )


def test_a_hundred_thousand_folds_stay_exact() -> None:
    """Contributions of changing sign and size, added one by one, against one sum."""
    steps = 100_000
    parts = torch.randn(steps, 1, 4, 4, dtype=torch.float64)
    parts *= torch.logspace(-3, 3, steps, dtype=torch.float64)[
        torch.randperm(steps), None, None, None
    ]
    sums = Accumulators(torch.zeros(1, 4, 4, dtype=torch.float64), None)
    for part in parts:
        sums = sums + Accumulators(part, None)
    error = (sums.state - parts.sum(0)).abs().max() / parts.sum(0).abs().max()
    assert error < 1e-11


UNRELATED_OR_ALIKE = pytest.mark.parametrize("common", [0.0, 1.0], ids=["unrelated", "alike"])


@UNRELATED_OR_ALIKE
def test_length_does_not_show_in_what_is_read(common: float) -> None:
    lifecycle = make_lifecycle("none")
    attention, queries = lifecycle.attentions[0], lifecycle.queries_EH[None]
    with torch.inference_mode():
        read = {
            count: float(
                attention(queries, sums.cast(torch.float32).layer(0), torch.tensor([count]))
                .abs()
                .mean()
            )
            for count, sums in sums_by_length(lifecycle, common).items()
        }
    assert list(read) == [100, 1_000, 10_000, 100_000]
    assert all(0.6 < size / read[100] < 1.6 for size in read.values()), read


@pytest.mark.parametrize("delta", get_args(Delta))
@UNRELATED_OR_ALIKE
def test_length_does_not_show_in_tokens(delta: Delta, common: float) -> None:
    lifecycle = make_lifecycle(delta)
    with torch.inference_mode():
        change = {
            count: float(
                (lifecycle.tokens(sums, torch.tensor([count])) - lifecycle.queries_EH).abs().mean()
            )
            for count, sums in sums_by_length(lifecycle, common).items()
        }
    assert all(0.7 < size / change[100] < 1.4 for size in change.values()), change


def sums_by_length(lifecycle: Lifecycle, common: float) -> dict[int, Accumulators]:
    """Of small items, around a common centre or around nothing."""
    shared, found, parts = randn(1, 1, WIDTH, seed=9), {}, []
    for block in range(100):
        items = 0.05 * (randn(1, 1_000, WIDTH, seed=block) + common * shared)
        if block == 0:
            found[100] = lifecycle.accumulate(items[:, :100], dtype=torch.float64)
        parts.append(lifecycle.accumulate(items, dtype=torch.float64))
        if block + 1 in (1, 10, 100):
            found[1_000 * (block + 1)] = total(parts)
    return found


def test_the_encoder_reads_tokens_of_those_who_have_them() -> None:
    lifecycle, tokens = make_lifecycle(), randn(2, 4, WIDTH)
    present = torch.tensor([True, False])
    segment = lifecycle.encode(tokens, present)
    assert segment.present.tolist() == [True, False]
    alone = lifecycle.encode(tokens[:1], present[:1])
    torch.testing.assert_close(segment.vectors[0], alone.vectors[0])
    assert torch.isfinite(segment.vectors).all()


def test_reconstruction_is_spread_over_the_life() -> None:
    """Padding on either side and in the middle; four items of the life of twelve, in order."""
    lifecycle, items = make_lifecycle(), randn(1, 16, WIDTH)
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[0, [0, 1, 7, 15]] = False
    tokens = randn(1, 4, WIDTH, seed=1)
    chosen = items[mask][[0, 3, 6, 9]][None]
    expected = lifecycle.reconstruction.loss(tokens, chosen, torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(
        lifecycle.reconstruction_loss(tokens, Segment(items, mask)), expected
    )


def test_reconstruction_weighs_short_lives_and_none() -> None:
    lifecycle, items, tokens = make_lifecycle(), randn(3, 8, WIDTH), randn(3, 4, WIDTH, seed=1)
    mask = torch.arange(8) >= torch.tensor([[5], [0], [8]])
    both = lifecycle.reconstruction_loss(tokens, Segment(items, mask))
    short = lifecycle.reconstruction_loss(tokens[:1], Segment(items[:1], mask[:1]))
    long = lifecycle.reconstruction_loss(tokens[1:2], Segment(items[1:2], mask[1:2]))
    torch.testing.assert_close(both, (2 * short + 3 * long) / 5)
    nobody = lifecycle.reconstruction_loss(tokens, Segment(items, torch.zeros_like(mask)))
    assert float(nobody) == 0


def test_reconstruction_is_the_off_by_one_error_of_the_paper() -> None:
    lifecycle, items, tokens = make_lifecycle(), randn(1, 5, WIDTH), randn(1, 4, WIDTH, seed=1)
    decoder, out = lifecycle.reconstruction.decoder, lifecycle.reconstruction.out
    errors = []
    for i in range(4):
        seen = torch.cat([tokens, items[:, : i + 1]], 1)  # nothing later, so no mask
        rebuilt = out(decoder(seen, None)[:, -1])
        errors.append((rebuilt - items[:, i + 1]).square().mean())
    loss = lifecycle.reconstruction.loss(tokens, items, torch.ones(1, 5, dtype=torch.bool))
    torch.testing.assert_close(loss, torch.stack(errors).mean())


@pytest.mark.parametrize("delta", get_args(Delta))
def test_reconstruction_teaches_tokens_to_tell_lives_apart(delta: Delta) -> None:
    """Each life circles around its own centre: rebuilt better than any constant could, if the tokens are its own."""
    lifecycle = make_lifecycle(delta).train()
    optimiser = torch.optim.Adam(lifecycle.parameters(), lr=1e-2)
    for step in range(150):
        older = lives(step)
        loss = lifecycle.reconstruction_loss(tokens_of(lifecycle, older), older)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if step == 0:
            check_gradients(lifecycle)
        optimiser.step()
    older, constant = lives(10_000), 2.0  # variance of centres and of noise around them
    with torch.inference_mode():
        tokens = tokens_of(lifecycle, older)
        own = float(lifecycle.reconstruction_loss(tokens, older))
        strangers = float(lifecycle.reconstruction_loss(tokens.roll(1, 0), older))
        assert own < 0.75 * constant
        assert strangers > 1.15 * own
        assert float(tokens.std(0).mean()) > 0.5


def lives(seed: int) -> Segment:
    centres, noise = randn(16, 1, WIDTH, seed=2 * seed), randn(16, 60, WIDTH, seed=2 * seed + 1)
    return Segment(centres + noise, torch.ones(16, 60, dtype=torch.bool))


def tokens_of(lifecycle: Lifecycle, older: Segment) -> Tensor:
    return lifecycle.tokens(lifecycle.accumulate(older.vectors, older.mask), older.mask.sum(1))


def check_gradients(lifecycle: Lifecycle) -> None:
    """Of the learnable queries and of every projection of every layer."""
    learnt = {"queries_EH": lifecycle.queries_EH, **dict(lifecycle.attentions.named_parameters())}
    assert [name for name, p in learnt.items() if p.grad is None or p.grad.abs().max() == 0] == []


def test_settings_outside_their_limits_name_themselves() -> None:
    with pytest.raises(
        ModelConfigError, match="delta is 'best'; it must be one of self, top_r, none"
    ):
        LifecycleConfig(delta="best")  # type: ignore[arg-type]
    with pytest.raises(ModelConfigError, match="top_r is 0"):
        LifecycleConfig(top_r=0)
