"""How a gradient passes the choice of a code, which has none of its own.

Shapes: N items, L latent width.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

_EPSILON = 1e-6


def straight_through(latents_NL: Tensor, quantised_NL: Tensor) -> Tensor:
    """`quantised_NL` in value, the identity in gradient: z + sg(q - z) (Bengio et al., arXiv 1308.3432)."""
    return latents_NL + (quantised_NL - latents_NL).detach()


def rotation_trick(latents_NL: Tensor, quantised_NL: Tensor) -> Tensor:
    """`quantised_NL` in value; the gradient is turned and scaled as z is onto q (Fifty et al., arXiv 2410.06424).

    sg(|q| / |z| R) z with R the rotation in the plane of z and q: R = I - 2 r r^T + 2 q' z'^T, where z' and q' are
    unit vectors and r is their sum's direction.
    """
    z_NL, q_NL = latents_NL.detach(), quantised_NL.detach()
    from_NL, to_NL = functional.normalize(z_NL, dim=1), functional.normalize(q_NL, dim=1)
    middle_NL = functional.normalize(from_NL + to_NL, dim=1)
    scale_N1 = q_NL.norm(dim=1, keepdim=True) / z_NL.norm(dim=1, keepdim=True).clamp(min=_EPSILON)
    turned_NL = (
        latents_NL
        - 2 * (latents_NL * middle_NL).sum(1, keepdim=True) * middle_NL
        + 2 * (latents_NL * from_NL).sum(1, keepdim=True) * to_NL
    )
    return turned_NL * scale_N1


PASS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "straight_through": straight_through,
    "rotation": rotation_trick,
}
