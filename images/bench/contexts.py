"""The contexts of the conventional side: the same versions from the same index as ours, on a baseline image. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from images.context.render import Context, content_of
from images.context.templates import environment
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image

_CUDA = re.compile(
    r"nvidia-(?:cublas|cuda-cupti|cuda-nvrtc|cuda-runtime|cufft|curand|cusolver|cusparse|nccl|nvjitlink)(?:-cu1[0-9])?"
)
"""Distributions of torch's closure that NVIDIA's devel images hold too; cuDNN, cuSPARSELt and NVSHMEM they lack."""


def baseline_context(devel: Context, image: Image, locked: Lock, base: str) -> Context:
    """The baseline image, in place of NVIDIA's devel image: a -devel context, ended with toolkit and libraries."""
    cuda = [package for layer in image.layers for package in locked.layers[layer] if _CUDA.fullmatch(package.name)]
    text = content_of(devel["Dockerfile"]).decode()
    template = environment().get_template("bench/baseline.j2")
    end = template.render(base=base, home=image.toolkit_home, python="/opt/venv/bin/python")
    return {**devel, "locks/cuda.txt": lock_file.print_requirements(cuda), "Dockerfile": (text + end).encode()}


def conventional_context(image: Image, locked: Lock, base: str, host: Mapping[str, bytes]) -> Context:
    """The image's packages in one requirements file, on a devel base."""
    packages = [package for layer in image.layers for package in locked.layers[layer]]
    pip = next(package.version for package in packages if package.name == "pip")
    lines = [f"{package.name}=={package.version}" for package in packages]
    return {
        **host,
        "requirements.txt": "\n".join([*lines, ""]).encode(),
        "Dockerfile": environment().get_template("bench/conventional.j2").render(base=base, pip=pip).encode(),
    }
