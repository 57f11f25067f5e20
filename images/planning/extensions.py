"""Packages of which a compiled wheel may take the place of pure Python (`extensions` of a profile), as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class ExtensionsRow(TypedDict):
    """The compiled extensions of a package: modules to import, and patterns of its libraries."""

    modules: list[str]
    gpu: list[str]
    """With kernels for GPUs."""
    cpu: list[str]
    also: list[str]
    """More that may be there."""


EXTENSIONS: Mapping[str, ExtensionsRow] = {
    "colossalai": {
        "modules": ["colossalai._C.cpu_adam_x86", "colossalai._C.fused_optim_cuda", "colossalai._C.layernorm_cuda"],
        "gpu": [
            "colossalai/_C/fused_optim_cuda*.so",
            "colossalai/_C/layernorm_cuda*.so",
        ],
        "cpu": ["colossalai/_C/cpu_adam_x86*.so"],
        "also": ["colossalai/_C/*.so"],
    },
    "deepspeed": {
        "modules": [
            "deepspeed.ops.adam.cpu_adam_op",
            "deepspeed.ops.adam.fused_adam_op",
            "deepspeed.ops.lamb.fused_lamb_op",
        ],
        "gpu": ["deepspeed/ops/adam/fused_adam_op*.so", "deepspeed/ops/lamb/fused_lamb_op*.so"],
        "cpu": ["deepspeed/ops/adam/cpu_adam_op*.so"],
        "also": [],
    },
}
