"""Measure and bound how much a layer of attention can magnify a small change of its tokens.

The package has Jacobians of attention, their spectral norms with certificates, which are the local
Lipschitz constants, and bounds on Lipschitz constants, each with the theorem that proves it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lipcore import adversarial, bounds, jacobian, measures, models, spectral
    from lipcore.attention import Attention, attention_map
    from lipcore.jacobian import AttentionJacobian, AutogradJacobian
    from lipcore.models.capture import capture
    from lipcore.models.measure import measure
    from lipcore.models.modules import from_module
    from lipcore.results import SpectralNorm
    from lipcore.spectral import local_lipschitz, spectral_norm

__all__ = [
    "Attention",
    "AttentionJacobian",
    "AutogradJacobian",
    "SpectralNorm",
    "adversarial",
    "attention_map",
    "bounds",
    "capture",
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

_HOMES = {
    "Attention": "attention",
    "attention_map": "attention",
    "AttentionJacobian": "jacobian",
    "AutogradJacobian": "jacobian",
    "capture": "models.capture",
    "measure": "models.measure",
    "from_module": "models.modules",
    "SpectralNorm": "results",
    "local_lipschitz": "spectral",
    "spectral_norm": "spectral",
}


def __getattr__(name: str):
    """Import on first use, since command-line help and the claims of pages need no PyTorch."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"lipcore.{_HOMES[name]}"), name)
    elif name in __all__:
        value = importlib.import_module(f"lipcore.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
