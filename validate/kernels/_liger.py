"""What the files of Liger share."""

from validate.kernels import from_capability

SUPPORTS = from_capability(8, 0, "Liger is claimed with bfloat16, which GPUs have from Ampere on")
