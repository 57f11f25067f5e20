"""G9: FP8 products. One process; what runs stands in `validate/kernels/`."""

from validate.kernels.runner import measure

__all__ = ["measure"]
