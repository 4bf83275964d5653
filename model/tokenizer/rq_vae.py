"""RQ-VAE (TIGER, arXiv 2305.05065): residual codes of a learned latent instead of the item vector itself.

Shapes: N items, D levels, K codes, L latent width, V vector width.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.tokenizer.kmeans import fit_centroids
from model.tokenizer.quantisation_gradient import PASS
from model.tokenizer.residual_codes import nearest, residual_codes, sum_of_codes
from model.tokenizer.tokenizer import UNBOUNDED, Bounds, RqVaeConfig, TokenizerConfig, split

_WEIGHT_DECAY = 1e-4
_BLOCK = 8192


@dataclass(frozen=True)
class RqVaeLoss:
    """One batch's losses, means over items, and the codes that it used."""

    reconstruction: Tensor
    codebook: Tensor
    commitment: Tensor
    codes: Tensor
    """[N, D]."""

    def total(self, commitment_weight: float) -> Tensor:
        """TIGER, section 3.1."""
        return self.reconstruction + self.codebook + commitment_weight * self.commitment


class RqVaeNetwork(nn.Module):
    """Encoder, codebooks, decoder; inputs are centred and scaled, or unit vectors collapse onto a few codes."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, config: TokenizerConfig) -> None:
        """`width` is that of the item vectors."""
        super().__init__()
        layers = config.rq_vae
        widths = (width, *layers.hidden_widths, layers.latent_width)
        self.encoder, self.decoder = _mlp(widths), _mlp(widths[::-1])
        self.codebooks = nn.ParameterList(
            nn.Parameter(torch.zeros(size, layers.latent_width)) for size in config.codebook_sizes
        )
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(()))

    def loss(self, inputs_NV: Tensor, config: RqVaeConfig) -> RqVaeLoss:
        """Losses of standardised inputs: ||x - x'||^2, ||sg(r) - e||^2 and ||r - sg(e)||^2 summed over levels."""
        latents_NL = self.encoder(inputs_NV)
        residual_NL, codes = latents_NL, []
        codebook = commitment = latents_NL.new_zeros(())
        for centroids_KL in self.codebooks:
            codes.append(nearest(residual_NL.detach(), centroids_KL.detach())[1])
            chosen_NL = centroids_KL[codes[-1]]
            codebook = codebook + _distance(residual_NL.detach(), chosen_NL)
            commitment = commitment + _distance(residual_NL, chosen_NL.detach())
            residual_NL = residual_NL - chosen_NL.detach()
        quantised_NL = (latents_NL - residual_NL).detach()
        outputs_NV = self.decoder(PASS[config.gradient](latents_NL, quantised_NL))
        return RqVaeLoss(
            _distance(inputs_NV, outputs_NV), codebook, commitment, torch.stack(codes, 1)
        )

    @torch.no_grad()
    def revive(self, inputs_NV: Tensor, used: Sequence[Tensor], generator: torch.Generator) -> int:
        """Move codes that are not `used` (a mask per level) onto residuals of random inputs; how many were moved."""
        residual_NL, moved = self.encoder(inputs_NV), 0
        for centroids_KL, used_K in zip(self.codebooks, used, strict=True):
            dead = torch.nonzero(~used_K)[:, 0]
            dead = dead[torch.randperm(len(dead), generator=generator)][: len(inputs_NV)]
            rows = torch.randperm(len(inputs_NV), generator=generator)[: len(dead)]
            codes_N = nearest(residual_NL, centroids_KL)[1]
            following_NL = residual_NL - centroids_KL[codes_N]
            centroids_KL[dead] = residual_NL[rows]
            residual_NL, moved = following_NL, moved + len(dead)
        return moved


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def _distance(one_NV: Tensor, other_NV: Tensor) -> Tensor:
    return (one_NV - other_NV).square().sum(1).mean()


class RqVae:
    """A fitted RQ-VAE."""

    def __init__(self, network: RqVaeNetwork) -> None:
        """From a trained network."""
        self.network = network.eval().requires_grad_(False)

    @classmethod
    def fit(
        cls, vectors_NV: Tensor, config: TokenizerConfig, generator: torch.Generator
    ) -> "RqVae":
        """Adam on random batches, codebooks started by k-means on the latents, dead codes revived."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            network = RqVaeNetwork(vectors_NV.shape[1], config)
        network.mean = vectors_NV.mean(0)
        deviation = (vectors_NV - network.mean).square().mean().sqrt()
        network.scale = deviation if deviation > 0 else torch.ones(())
        _start_codebooks(network, vectors_NV, config, generator)
        _train(network, vectors_NV, config.rq_vae, generator)
        return cls(network)

    def assign(self, vectors_NV: Tensor, bounds: Bounds = UNBOUNDED) -> Tensor:
        """[N, D] int64 codes of the vectors' latents."""
        return residual_codes(_latents(self.network, vectors_NV), self._codebooks, bounds)

    def decode(self, codes_ND: Tensor) -> Tensor:
        """[N, V]: the decoder's reading of the codes' sum."""
        network = self.network
        quantised = split(sum_of_codes(codes_ND, self._codebooks), _BLOCK)
        return torch.cat(
            [network.decoder(block) * network.scale + network.mean for block in quantised]
        )

    @property
    def _codebooks(self) -> list[Tensor]:
        return list(self.network.codebooks)

    def tensors(self) -> dict[str, Tensor]:
        """All weights."""
        return dict(self.network.state_dict())

    @classmethod
    def restore(cls, config: TokenizerConfig, tensors: dict[str, Tensor]) -> "RqVae":
        """The tokenizer that gave these `tensors` under `config`. Raises KeyError, RuntimeError."""
        network = RqVaeNetwork(len(tensors["mean"]), config)
        network.load_state_dict(tensors)
        return cls(network)


def _standardised(network: RqVaeNetwork, vectors_NV: Tensor) -> Tensor:
    return (vectors_NV - network.mean) / network.scale


@torch.no_grad()
def _latents(network: RqVaeNetwork, vectors_NV: Tensor) -> Tensor:
    blocks = split(vectors_NV, _BLOCK)
    return torch.cat([network.encoder(_standardised(network, block)) for block in blocks])


def _batch(
    network: RqVaeNetwork, vectors_NV: Tensor, size: int, generator: torch.Generator
) -> Tensor:
    rows = torch.randint(len(vectors_NV), (size,), generator=generator)
    return _standardised(network, vectors_NV[rows])


def _start_codebooks(
    network: RqVaeNetwork, vectors_NV: Tensor, config: TokenizerConfig, generator: torch.Generator
) -> None:
    size = config.codebook_size * config.kmeans.points_per_code
    rows = torch.randperm(len(vectors_NV), generator=generator)[:size]
    residual_NL = _latents(network, vectors_NV[rows])
    with torch.no_grad():
        for codebook_KL in network.codebooks:
            codebook_KL.copy_(
                fit_centroids(residual_NL, len(codebook_KL), config.kmeans, 0.0, generator)
            )
            residual_NL -= codebook_KL[nearest(residual_NL, codebook_KL)[1]]


def _train(
    network: RqVaeNetwork, vectors_NV: Tensor, config: RqVaeConfig, generator: torch.Generator
) -> None:
    optimiser = torch.optim.AdamW(
        network.parameters(), config.learning_rate, weight_decay=_WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.num_steps)
    used = [torch.zeros(len(codebook), dtype=torch.bool) for codebook in network.codebooks]
    for step in range(1, config.num_steps + 1):
        inputs_NV = _batch(network, vectors_NV, config.batch_size, generator)
        loss = network.loss(inputs_NV, config)
        optimiser.zero_grad()
        loss.total(config.commitment_weight).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        for level, used_K in enumerate(used):
            used_K[loss.codes[:, level]] = True
        # A code revived at the very end would have no time to settle.
        if step % config.reset_every == 0 and step < config.num_steps:
            network.revive(inputs_NV, used, generator)
            for used_K in used:
                used_K.zero_()
