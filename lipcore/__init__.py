"""Local Lipschitz constants of attention: Jacobians, certified spectral norms, and the bounds of the theory."""

from lipcore import bounds, jacobian, spectral
from lipcore.attention import Attention, attention_map
from lipcore.jacobian import AttentionJacobian, AutogradJacobian
from lipcore.spectral import SpectralNorm, local_lipschitz, spectral_norm

__all__ = [
    "Attention",
    "AttentionJacobian",
    "AutogradJacobian",
    "SpectralNorm",
    "attention_map",
    "bounds",
    "jacobian",
    "local_lipschitz",
    "spectral",
    "spectral_norm",
]
__version__ = "0.1.0"
