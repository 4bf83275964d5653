"""The RQ-VAE: its loss, its gradients, and that dead codes come back."""

import pytest
import torch
from torch import Tensor

from model.tokenizer.fitting import fit_tokenizer
from model.tokenizer.health import tokenizer_health
from model.tokenizer.quantisation_gradient import rotation_trick, straight_through
from model.tokenizer.rq_vae import RqVaeNetwork
from model.tokenizer.tokenizer import RqVaeConfig, TokenizerConfig

LAYERS = RqVaeConfig(
    hidden_widths=(16,), latent_width=4, num_steps=200, batch_size=64, learning_rate=5e-3
)
CONFIG = TokenizerConfig(kind="rq_vae", codebook_sizes=(8, 8), rq_vae=LAYERS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def vectors() -> Tensor:
    centres = torch.randn(12, 6, generator=generator(1)) * 3
    return centres.repeat(30, 1) + 0.2 * torch.randn(360, 6, generator=generator(2))


@pytest.fixture
def network() -> RqVaeNetwork:
    torch.manual_seed(0)
    network = RqVaeNetwork(6, CONFIG)
    for codebook in network.codebooks:
        torch.nn.init.normal_(codebook)
    return network


def pair() -> tuple[Tensor, Tensor]:
    latents = torch.randn(5, 4, dtype=torch.float64, generator=generator(3), requires_grad=True)
    return latents, torch.randn(5, 4, dtype=torch.float64, generator=generator(4))


def test_straight_through_has_the_codes_value_and_the_identitys_gradient() -> None:
    latents, quantised = pair()
    upstream = torch.randn(5, 4, dtype=torch.float64, generator=generator(5))
    output = straight_through(latents, quantised)
    (gradient,) = torch.autograd.grad(output, latents, upstream)
    torch.testing.assert_close(output.detach(), quantised)
    assert torch.equal(gradient, upstream)


def test_rotation_trick_is_autograd_of_its_definition() -> None:
    latents, quantised = pair()
    upstream = torch.randn(5, 4, dtype=torch.float64, generator=generator(5))
    output = rotation_trick(latents, quantised)
    (gradient,) = torch.autograd.grad(output, latents, upstream)
    torch.testing.assert_close(output.detach(), quantised)
    for row in range(5):
        latent = latents[row].detach().clone().requires_grad_(True)
        matrix = scaled_rotation(latent.detach(), quantised[row])
        (expected,) = torch.autograd.grad(matrix @ latent, latent, upstream[row])
        torch.testing.assert_close(gradient[row], expected)


def scaled_rotation(z: Tensor, q: Tensor) -> Tensor:
    """The rotation of the plane of z and q that turns z onto q, written in an orthonormal basis of that plane."""
    first = z / z.norm()
    second = q - (q @ first) * first
    second = second / second.norm()
    cosine, sine = q @ first / q.norm(), q @ second / q.norm()
    basis = torch.stack([first, second], 1)
    turn = torch.stack([torch.stack([cosine, -sine]), torch.stack([sine, cosine])])
    identity = torch.eye(len(z), dtype=z.dtype)
    return q.norm() / z.norm() * (identity + basis @ (turn - torch.eye(2, dtype=z.dtype)) @ basis.T)


def test_a_zero_latent_gives_finite_gradients() -> None:
    latents = torch.zeros(1, 4, requires_grad=True)
    rotation_trick(latents, torch.ones(1, 4)).sum().backward()  # type: ignore[no-untyped-call]
    assert latents.grad is not None
    assert latents.grad.isfinite().all()


def test_the_loss_is_what_a_loop_gives(network: RqVaeNetwork, vectors: Tensor) -> None:
    network.requires_grad_(False)
    loss = network.loss(vectors[:7], LAYERS)
    reconstruction = commitment = 0.0
    for row, vector in enumerate(vectors[:7]):
        latent = network.encoder(vector)
        residual = latent.clone()
        for level, codebook in enumerate(network.codebooks):
            code = int((codebook - residual).square().sum(1).argmin())
            assert loss.codes[row, level] == code
            residual = residual - codebook[code]
            commitment += float(residual.square().sum()) / 7
        output = network.decoder(latent - residual)
        reconstruction += float((output - vector).square().sum()) / 7
    assert float(loss.reconstruction) == pytest.approx(reconstruction, rel=1e-4)
    assert float(loss.commitment) == pytest.approx(commitment, rel=1e-4)
    assert float(loss.codebook) == pytest.approx(commitment, rel=1e-4)


def test_each_loss_moves_only_what_it_is_for(network: RqVaeNetwork, vectors: Tensor) -> None:
    """Reconstruction trains encoder and decoder, the codebook loss codebooks, commitment the encoder."""
    loss = network.loss(vectors, LAYERS)
    moved = {}
    for name in ("reconstruction", "codebook", "commitment"):
        gradients = torch.autograd.grad(
            getattr(loss, name),
            list(network.parameters()),
            retain_graph=True,
            materialize_grads=True,
        )
        pairs = zip(network.named_parameters(), gradients, strict=True)
        moved[name] = {key.split(".")[0] for (key, _), g in pairs if g.any()}
    assert moved["reconstruction"] == {"encoder", "decoder"}
    assert moved["codebook"] == {"codebooks"}
    assert moved["commitment"] == {"encoder"}


@pytest.mark.parametrize("gradient", ["straight_through", "rotation"])
def test_the_error_falls_and_codes_are_used(vectors: Tensor, gradient: str) -> None:
    layers = {**vars(LAYERS), "gradient": gradient}
    unexplained = []
    for num_steps in (1, 200):
        config = TokenizerConfig(
            kind="rq_vae",
            codebook_sizes=(8, 8),
            rq_vae=RqVaeConfig(**{**layers, "num_steps": num_steps}),
        )
        tokenizer = fit_tokenizer(vectors, config, seed=0)
        codes = tokenizer.assign(vectors)
        health = tokenizer_health(tokenizer, vectors, codes.numpy(), config.codebook_sizes)
        unexplained.append(health.levels[-1].unexplained)
    assert unexplained[1] < 0.3
    assert unexplained[0] > 0.7
    assert health.levels[0].dead_codes == 0


def test_dead_codes_are_revived(network: RqVaeNetwork, vectors: Tensor) -> None:
    with torch.no_grad():
        for codebook in network.codebooks:
            codebook[3:] = 1e3
    before = network.loss(vectors, LAYERS)
    used = [torch.zeros(8, dtype=torch.bool) for _ in range(2)]
    for level in range(2):
        used[level][before.codes[:, level]] = True
        assert not used[level][3:].any()
    moved = network.revive(vectors, used, generator())
    after = network.loss(vectors, LAYERS)
    assert moved == sum(int((~mask).sum()) for mask in used)
    assert set(after.codes[:, 0].tolist()) >= set(range(3, 8))
    assert after.commitment < before.commitment
    for level, mask in enumerate(used):
        assert network.codebooks[level].abs().max() < 1e3
        assert mask.any()
