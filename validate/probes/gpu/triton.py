"""G6: Triton's just-in-time compiler, from the cold cache that the suite gives each probe: `validate/kernels/`."""

from validate.kernels.runner import measure

__all__ = ["measure"]
