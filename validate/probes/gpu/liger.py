"""G7: Liger's kernels. One process; what runs stands in `validate/kernels/`."""

from validate.kernels.runner import measure

__all__ = ["measure"]
