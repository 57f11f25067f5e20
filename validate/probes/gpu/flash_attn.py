"""G3: flash-attn. One process; what runs stands in `validate/kernels/`."""

from validate.kernels.runner import measure

__all__ = ["measure"]
