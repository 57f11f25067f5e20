"""The kernels of torch's attention through cuDNN."""

from collections.abc import Mapping

from validate.kernels import from_capability
from validate.kernels._names import SDPA_CUDNN_BACKWARD, SDPA_CUDNN_FORWARD, at_least
from validate.kernels._sdpa import cases, kernels_of_others, of_sdpa

_WITHOUT_NVRTC = (
    "torch 2.5's wheels leave cuDNN without libnvrtc, and without it cuDNN's attention has no"
    " execution plan: by design until torch 2.6 loads it (pytorch#145580, #145582)"
)
"""cuDNN compiles its attention as it runs. Its wheels look for libnvrtc in `nvidia/nvrtc/lib`, and
it lies in `nvidia/cuda_nvrtc/lib`; torch 2.6.0's `__init__.py` is the first to load it beforehand,
2.5.1's does not.
"""
_ODD_LENGTHS = cases("CUDNN_ATTENTION", "float16", "bfloat16")
_READS_PAST = (
    "lengths that are no multiples of 128, in whose backward cuDNN before 9.15.1 reads past the end"
    " (cudnn-frontend 1.16.0's notes, pytorch#169849); torch's wheels of CUDA 12, and all up to"
    " 2.10, pin earlier ones"
)


def _leaves_out(versions: Mapping[str, str]) -> Mapping[str, str]:
    """Return the cases of odd lengths -> why they are not claimed of these versions.

    They were right with cuDNN 9.10.2 on an H100, but upstream says that they need not be.
    """
    is_repaired = at_least(versions, "torch", "2.11") and at_least(versions, "cuda", "13")
    return {} if is_repaired else dict.fromkeys(_ODD_LENGTHS, _READS_PAST)


KERNEL = of_sdpa(
    statement="torch's attention through cuDNN, forward and backward, as plain torch computes it",
    cases={**_ODD_LENGTHS, **cases("CUDNN_ATTENTION", "float16", "bfloat16", in_128s=True)},
    leaves_out=_leaves_out,
    expected_kernels={"forward": SDPA_CUDNN_FORWARD, "backward": SDPA_CUDNN_BACKWARD},
    other_kernels=kernels_of_others("cuDNN's"),
    version_obstacle=lambda versions: (
        None if at_least(versions, "torch", "2.6") else _WITHOUT_NVRTC
    ),
    gpu_obstacle=from_capability(8, 0, "torch has this backend from Ampere on"),
)
