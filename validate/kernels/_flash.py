"""What the two files of flash-attn share."""

from __future__ import annotations

from validate.kernels import from_capability
from validate.kernels._names import FLASH_ATTN_BACKWARD, FLASH_ATTN_FORWARD

SUPPORTS = from_capability(8, 0, "flash-attn has kernels from Ampere on")
RAN = {"forward": FLASH_ATTN_FORWARD, "backward": FLASH_ATTN_BACKWARD}
OTHERS = {r"pytorch_flash::": "torch's own FlashAttention"}
LIBRARIES = (r"flash_attn_2_cuda.*\.so",)
