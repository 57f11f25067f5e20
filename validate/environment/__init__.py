"""What is installed beside the suite, and what its processes start with: packages, owners, drivers, variables."""

from __future__ import annotations

ALLOCATOR = "expandable_segments:True,roundup_power2_divisions:16"
"""Less fragmentation; torch 2.2 and newer (axolotl's CUDA page, Credentials)."""
_RENAMED_FROM = (2, 10)
"""The first whose CUDA allocator reads the new name (c10/cuda/CUDAAllocatorConfig.h of the wheels; 2.9.1 reads the old
one alone)."""


def allocator_variable(torch: tuple[int, int]) -> str:
    """The variable that a torch release (major, minor) reads its CUDA allocator's settings from."""
    return "PYTORCH_ALLOC_CONF" if torch >= _RENAMED_FROM else "PYTORCH_CUDA_ALLOC_CONF"
