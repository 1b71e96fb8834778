"""Measure and bound how much a layer of attention can magnify a small change of its tokens.

The package has Jacobians of attention, their spectral norms with certificates, which are the local
Lipschitz constants, and bounds on Lipschitz constants, each with the theorem that proves it.
"""

from lipcore import adversarial, bounds, jacobian, measures, models, spectral
from lipcore.attention import Attention, attention_map
from lipcore.autodiff import AutogradJacobian
from lipcore.export import export_head
from lipcore.jacobian import AttentionJacobian
from lipcore.lipschitz import LocalLipschitz, local_lipschitz
from lipcore.models.capture import capture
from lipcore.models.measure import measure
from lipcore.models.modules import from_module
from lipcore.spectral import SpectralNorm, spectral_norm

__all__ = [
    "Attention",
    "AttentionJacobian",
    "AutogradJacobian",
    "LocalLipschitz",
    "SpectralNorm",
    "adversarial",
    "attention_map",
    "bounds",
    "capture",
    "export_head",
    "from_module",
    "jacobian",
    "local_lipschitz",
    "measure",
    "measures",
    "models",
    "spectral",
    "spectral_norm",
]
__version__ = "0.1.0"
