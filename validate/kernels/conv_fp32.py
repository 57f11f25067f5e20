"""The kernel of a float32 convolution through cuDNN without TF32, which torch allows there."""

import importlib
from typing import Any

from validate.kernels import Case, SeededRandom
from validate.kernels.gemm_fp32 import of_float32


def _plain(image: Any, weight: Any) -> Any:
    """Convolve in the inputs' dtype."""
    functional = importlib.import_module("torch.nn.functional")
    return functional.conv2d(image, weight, stride=2, padding=1)


def _without_tf32(image: Any, weight: Any) -> Any:
    """Convolve with TF32 switched off in cuDNN."""
    cudnn = importlib.import_module("torch").backends.cudnn
    with cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        return _plain(image, weight)


def _case(rng: SeededRandom) -> Case:
    """Return a convolution of images with odd sizes."""
    inputs = {"image": rng.normal(3, 13, 37, 29), "weight": rng.normal(19, 13, 3, 5)}
    return Case(dtype="float32", inputs=inputs, run=_without_tf32, plain=_plain, grad_inputs=())


KERNEL = of_float32(
    statement="a float32 convolution without TF32 is within 1e-5 of float64",
    cases={"3x13x37x29": _case},
    libraries=(r"libcudnn\w*\.so",),
)
