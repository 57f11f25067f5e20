"""G5: bitsandbytes' quantisers, products and optimizers. One process; what runs stands in `validate/kernels/`."""

from validate.kernels.runner import measure

__all__ = ["measure"]
