"""G4: xformers' attention, the operator pinned. One process; what runs stands in `validate/kernels/`."""

from validate.kernels.runner import measure

__all__ = ["measure"]
