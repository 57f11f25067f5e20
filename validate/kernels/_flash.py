"""What the two files of flash-attn share."""

from __future__ import annotations

from validate.kernels import from_capability

SUPPORTS = from_capability(8, 0, "flash-attn has kernels from Ampere on")
RAN = (r"(?<!pytorch_)flash::flash_fwd", r"(?<!pytorch_)flash::flash_bwd")
"""torch's own copy is in the namespace pytorch_flash: seeing that one would prove nothing here."""
LIBRARIES = (r"flash_attn_2_cuda.*\.so",)
