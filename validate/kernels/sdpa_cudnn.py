"""G2: scaled_dot_product_attention through cuDNN."""

from __future__ import annotations

from collections.abc import Mapping

from validate.kernels import RULE_T, Kernel, from_capability
from validate.kernels._names import SDPA_CUDNN_BACKWARD, SDPA_CUDNN_FORWARD, at_least
from validate.kernels._sdpa import cases, others

_WITHOUT_NVRTC = (
    "torch 2.5's wheels leave cuDNN without libnvrtc, and without it cuDNN's attention has no execution plan: by design"
    " until torch 2.6 loads it (pytorch#145580, #145582)"
)


def _excludes(versions: Mapping[str, str]) -> str | None:
    """cuDNN compiles its attention as it runs. Its wheels look for libnvrtc in `nvidia/nvrtc/lib`, and it lies in
    `nvidia/cuda_nvrtc/lib`; torch 2.6.0's `__init__.py` is the first to load it beforehand, 2.5.1's does not.
    """
    return None if at_least(versions, "torch", "2.6") else _WITHOUT_NVRTC


KERNEL = Kernel(
    claim="G2",
    probe="gpu.sdpa",
    package="torch",
    statement="torch's attention through cuDNN, forward and backward, as plain torch computes it",
    cases=cases("CUDNN_ATTENTION", "float16", "bfloat16"),
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    expected_kernels={"forward": SDPA_CUDNN_FORWARD, "backward": SDPA_CUDNN_BACKWARD},
    other_kernels=others("cuDNN's"),
    libraries=(r"libtorch_cuda\.so",),
    excludes=_excludes,
    supports=from_capability(8, 0, "torch has this backend from Ampere on"),
)
