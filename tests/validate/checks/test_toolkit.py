"""toolkit: a CUDA toolkit is whole, of torch's CUDA, and off the loader's path."""

from pathlib import Path

import pytest

from tests.support import elves
from tests.support.judging import fails
from tests.support.site_packages import Site, measure_and_judge, static_claim
from validate.checks.static import toolkit
from validate.judging import Finding, Status


@pytest.fixture
def home(site: Site) -> Path:
    """The folder of a toolkit of CUDA 12.6, beside a torch that is built for it."""
    version_file = b"__version__ = '2.7.1'\ncuda = '12.6'\n"
    site.install("torch", "2.7.1", {"torch/__init__.py": b"", "torch/version.py": version_file})

    contents = {
        "bin/ptxas": b"\x7fELF\0Cuda, release 12.6, V12.6.85\0",
        "include/cuda_runtime_api.h": b"#define CUDART_VERSION  12060\n",
        "lib64/libcudart.so.12": elves.make(soname="libcudart.so.12"),
        "lib64/libnvrtc.so.12": elves.make(soname="libnvrtc.so.12"),
        "lib64/libnvrtc-builtins.so.12.6": elves.make(soname="libnvrtc-builtins.so.12.6"),
    }
    for path, content in contents.items():
        site.write(f"../cuda-12.6/{path}", content)
    folder = site.parent / "cuda-12.6"
    (folder / "lib64/libcudart.so").symlink_to("libcudart.so.12")
    site.start_with(CUDA_HOME=str(folder))
    return folder


def judged(home: Path) -> Finding:
    parts = ["ptxas", "cudart", "cudart headers", "nvrtc"]
    claim = static_claim("toolkit", "cuda", "toolkit", home=str(home), version="12.6", parts=parts)
    return measure_and_judge(toolkit, claim)


def test_a_whole_toolkit_of_torchs_cuda_passes(home: Path) -> None:
    assert judged(home)[:2] == (Status.PASS, f"CUDA 12.6 in {home}, 4 parts")


def test_another_minor_than_torchs_is_a_warning(site: Site, home: Path) -> None:
    site.write("torch/version.py", b"__version__ = '2.5.1'\ncuda = '12.4'\n")

    status, reason, _ = judged(home)

    assert status is Status.PASS
    assert "WARNING: torch is built for 12.4" in reason


def test_another_major_than_torchs_fails(site: Site, home: Path) -> None:
    site.write("torch/version.py", b"__version__ = '2.11.0'\ncuda = '13.0'\n")

    fails(judged(home), "majors must be equal")


OF_ANOTHER_MAJOR = elves.make(soname="libcudart.so.13")


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("bin/ptxas", b"\x7fELF\0release 12.4, V12.4.1\0", "ptxas is of CUDA 12.4"),
        ("bin/ptxas", b"#!/bin/sh\nexec /tmp/ptxas\n", "ptxas is of CUDA None"),
        ("bin/ptxas", None, "lacks ptxas"),
        ("include/cuda_runtime_api.h", b"#define CUDART_VERSION 12080\n", "is of CUDA 12.8"),
        ("lib64/libcudart.so.12", OF_ANOTHER_MAJOR, "libcudart.so.13, and CUDA 12.6 is expected"),
        ("lib64/libcudart.so.12", b"text", "is no shared library"),
        ("lib64/libnvrtc-builtins.so.12.6", None, "is of CUDA None"),
    ],
)
def test_a_part_that_is_missing_or_of_another_version_fails(
    home: Path, path: str, content: bytes | None, words: str
) -> None:
    if content is None:
        (home / path).unlink()
    else:
        (home / path).write_bytes(content)

    fails(judged(home), words)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"CUDA_HOME": "HOME", "LD_LIBRARY_PATH": "/nowhere:HOME/lib64"}, "shadow torch's"),
        ({"CUDA_HOME": "HOME", "LD_LIBRARY_PATH": "HOME/lib64/stubs"}, "stubs"),
        ({"CUDA_HOME": "HOME", "LD_LIBRARY_PATH": "HOME/compat"}, "forward-compatibility"),
        ({}, "CUDA_HOME is not set"),
    ],
)
def test_variables_must_lead_compilers_to_the_toolkit_and_the_loader_elsewhere(
    site: Site, home: Path, environ: dict[str, str], words: str
) -> None:
    """HOME stands for the toolkit's folder."""
    site.start_with(**{name: value.replace("HOME", str(home)) for name, value in environ.items()})

    fails(judged(home), words)
