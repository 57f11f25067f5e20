"""What the files of bitsandbytes share."""

from __future__ import annotations

from validate.kernels import from_capability

SUPPORTS = from_capability(7, 5, "bitsandbytes is claimed from Turing on")
LIBRARIES = (r"bitsandbytes/libbitsandbytes_cuda\d+\.so",)
SIGMAS = 7.0


def around(mean: float, sigma: float) -> tuple[float, float]:
    """Least and most of a quantiser's error, which is neither larger nor smaller than it must be."""
    return mean - SIGMAS * sigma, mean + SIGMAS * sigma
