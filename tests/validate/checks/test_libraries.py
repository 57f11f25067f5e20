"""libraries: the loader finds what each library needs, and there is one CUDA."""

from dataclasses import replace
from pathlib import Path

import pytest

from images.planning import expectations
from tests.support import elves
from tests.support.judging import fails, says
from tests.support.site_packages import Site, measure_and_judge, static_claim
from validate.checks import next_step_of
from validate.checks.static import libraries
from validate.claims import Claim
from validate.judging import Finding, Status

LINKED = static_claim(
    "libraries",
    "environment",
    "libraries",
    of="environment",
    cuda_libraries=expectations.cuda_libraries(12),
    host=list(expectations.HOST_LIBRARIES),
    other_platforms=list(expectations.OTHER_PLATFORMS),
    exceptions=list(expectations.LINK_EXCEPTIONS),
)


def judged(claim: Claim = LINKED) -> Finding:
    return measure_and_judge(libraries, claim)


def library(*needs: str) -> bytes:
    """Return a library that needs these."""
    return elves.make(needed=list(needs))


def install_torch(site: Site) -> None:
    """Install a torch that finds the runtime of CUDA 12, a wheel, through its RPATH."""
    global_deps = elves.make(
        soname="libtorch_global_deps.so",
        needed=["libcudart.so.12"],
        rpath="$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN",
    )
    contents = {
        "torch/lib/libtorch_global_deps.so": global_deps,
        "torch/lib/libtorch_python.so": elves.make(needed=["libtorch.so"], rpath="$ORIGIN"),
        "torch/lib/libtorch.so": elves.make(soname="libtorch.so", needed=["libcuda.so.1"]),
    }
    site.install("torch", "2.7.1", contents)
    runtime = {"nvidia/cuda_runtime/lib/libcudart.so.12": elves.make(soname="libcudart.so.12")}
    site.install("nvidia_cuda_runtime_cu12", "12.6.77", runtime)


NEEDS_OF_VARIANT = {
    "cuda126": "libcudart.so.12",
    "cuda130": "libcudart.so.13",
    "cuda118": "libcudart.so.11.0",
    "rocm62": "libhipblas.so.2",
    "cpu": "libgomp-x.so.1",
}
"""Variants of one library for several platforms, as bitsandbytes brings them, and what each needs.
Only that for CUDA 12.6 finds it."""


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (["cuda126", "cuda130", "cuda118", "rocm62"], ""),
        (["cuda130", "cuda118"], "libbnb_cuda130.so of bnb needs libcudart.so.13"),
        (["rocm62"], "needs libhipblas.so.2"),
        # What the CPU's variant lacks is of no other platform.
        (["cuda126", "cpu"], "libbnb_cpu.so of bnb needs libgomp-x.so.1"),
    ],
)
def test_a_variant_for_another_platform_is_excused_if_that_for_our_cuda_works(
    site: Site, variants: list[str], words: str
) -> None:
    install_torch(site)
    contents = {}
    for variant in variants:
        contents[f"bnb/libbnb_{variant}.so"] = library(NEEDS_OF_VARIANT[variant])
    site.install("bnb", "0.49", contents)

    says(judged(), words)


def test_a_library_for_another_cuda_fails(site: Site) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {"torchao/_C.abi3.so": library("libcudart.so.13")})

    fails(judged(), "torchao/_C.abi3.so of pkg needs libcudart.so.13")


def test_a_library_for_another_cuda_fails_even_if_a_toolkit_supplies_that(site: Site) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {"pkg/_C.so": library("libcudart.so.13")})
    site.write("../toolkit/libcudart.so.13", elves.make(soname="libcudart.so.13"))

    site.start_with(LD_LIBRARY_PATH=f"{site.parent}/toolkit")

    fails(judged(), "needs libcudart.so.13 of another CUDA major than torch's")


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("libcublasLt.so.12", "NVIDIA's package"),
        ("libnccl.so.2", "NVIDIA's package"),
        ("libcurl-x.so.4", "apt-get install"),
        ("libcups-x.so.2", "apt-get install"),
        ("libnvme-x.so.1", "apt-get install"),
    ],
)
def test_a_missing_library_is_to_be_installed_from_where_it_comes(
    missing: str, words: str, site: Site
) -> None:
    """Those of NVIDIA's packages by pip, and those of the system by apt-get."""
    install_torch(site)
    site.install("pkg", "1.0", {"pkg/_C.so": library(missing)})

    reason = judged().reason

    assert f"needs {missing}" in reason
    assert words in next_step_of(LINKED, reason)


def test_a_library_of_another_cuda_that_no_package_brings_is_to_be_removed(site: Site) -> None:
    """No release of a package can be named for it."""
    install_torch(site)
    site.write("stray/libcudart.so.11.0", elves.make(soname="libcudart.so.11.0"))

    reason = judged().reason

    assert "of no package at all is libcudart.so.11.0" in reason
    assert "remove the file that the reason names" in next_step_of(LINKED, reason)


def test_a_cuda_library_of_another_major_fails_even_if_nothing_needs_it(site: Site) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {"nvidia/libcudart.so.13": elves.make(soname="libcudart.so.13")})

    fails(judged(), "libcudart.so.13, of another CUDA major")


def test_a_rival_of_a_wheels_cuda_library_on_the_loaders_path_fails(site: Site) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {})
    site.write("../toolkit/libcudart.so.12", elves.make(soname="libcudart.so.12"))

    site.start_with(LD_LIBRARY_PATH=f"{site.parent}/toolkit")

    fails(judged(), "toolkit/libcudart.so.12")


def test_a_folder_named_stubs_excuses_nothing_outside_of_a_toolkit(site: Site) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {"lib/foo/stubs/_C.so": library("libgone.so.1")})

    fails(judged(), "stubs/_C.so of pkg needs libgone.so.1")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"version https://git-lfs", id="pointer-of-git-lfs"),
        pytest.param(elves.make()[:100], id="cut-short"),
        pytest.param(elves.make(machine=183), id="for-another-machine"),
    ],
)
def test_a_file_named_as_a_library_that_is_none_fails(site: Site, content: bytes) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {"pkg/_C.so": content})

    fails(judged(), "pkg/_C.so can't be loaded")


def test_a_library_of_the_same_distribution_is_assumed_to_be_loaded_first(site: Site) -> None:
    install_torch(site)
    core = elves.make(soname="libcore.so")
    site.install("pkg", "1.0", {"pkg/core/libcore.so": core, "pkg/_C.so": library("libcore.so")})

    status, reason, _ = judged()

    assert status is Status.PASS
    assert "taking _C.so to be loaded after their siblings" in reason


def test_what_torch_itself_misses_is_named_first(site: Site) -> None:
    install_torch(site)
    site.install("pkg", "1.0", {"pkg/_C.so": library("libgone.so.1")})

    (site.root / "nvidia/cuda_runtime/lib/libcudart.so.12").unlink()

    assert judged().reason.startswith("`import torch` misses libcudart.so.12")


# ---- The toolkit.


@pytest.fixture
def toolkit_claim(site: Site) -> Claim:
    """A -devel image's toolkit, with a link to a CUDA library of the environment.

    That library misses another one, which torch loads before it. Return the claim about the
    toolkit.
    """
    cusolver = {"nvidia/lib/libcusolverMg.so.12": library("libcublas.so.12")}
    site.install("cusolver", "12", cusolver)
    site.write("../cuda-12.6/lib64/libcudart.so.12", elves.make(soname="libcudart.so.12"))
    home = site.parent / "cuda-12.6"
    link = home / "lib64" / "libcusolverMg.so.12"
    link.symlink_to(site.root / "nvidia/lib/libcusolverMg.so.12")

    exceptions = [*expectations.LINK_EXCEPTIONS, *expectations.TOOLKIT_EXCEPTIONS]
    expect = {**LINKED.expect, "of": "toolkit", "exceptions": exceptions, "home": str(home)}
    return replace(LINKED, subject="toolkit", expect=expect)


@pytest.mark.parametrize(
    ("path", "needed", "words"),
    [
        pytest.param("doc/text", "", "", id="links-to-the-environment-are-not-its-own"),
        pytest.param(
            "targets/x86_64-linux/lib/stubs/libcusparse.so",
            "libgone.so.1",
            "",
            id="stub-for-linkers",
        ),
        pytest.param(
            "bin/cuda-gdb-python3.10-tui",
            "libpython3.10.so.1.0",
            "",
            id="debugger-for-a-python-that-is-not-there",
        ),
        pytest.param(
            "bin/cuda-gdb-python3.10-tui", "libtinfo.so.99", "libtinfo", id="debugger-lacks-more"
        ),
        pytest.param(
            "bin/nsys", "libpython3.10.so.1.0", "libpython3.10", id="another-program-for-it"
        ),
    ],
)
def test_stubs_and_debuggers_of_a_toolkit_need_not_load(
    site: Site, toolkit_claim: Claim, path: str, needed: str, words: str
) -> None:
    site.write(f"../cuda-12.6/{path}", library(needed))

    says(judged(toolkit_claim), words)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("../cuda-12.6/lib64/libx.so", id="its-own"),
        pytest.param("../elsewhere/libx.so", id="linked-from-elsewhere"),
        pytest.param("../home/libx.so", id="linked-from-the-home"),
    ],
)
def test_a_toolkits_library_that_lacks_another_fails(
    site: Site, toolkit_claim: Claim, place: str
) -> None:
    """It may be a link, as long as no claim about the environment reads the file."""
    file = site.write(place, library("libgone.so.1"))
    site.start_with(PYTHONPATH=f"{site.root}:/")

    link = site.parent / "cuda-12.6/lib64/libx.so"
    if not link.exists():
        link.symlink_to(file)

    words = "cuda-12.6/lib64/libx.so of no Python package needs libgone.so.1"
    fails(judged(toolkit_claim), words)


@pytest.mark.parametrize("through_a_second_link", [False, True])
def test_a_toolkits_link_that_leads_nowhere_fails(
    site: Site, toolkit_claim: Claim, through_a_second_link: bool
) -> None:
    linked_file: Path = site.root / "nvidia/lib/libcusolverMg.so.12"
    linked_file.unlink()
    if through_a_second_link:
        linked_file.symlink_to(site.root / "nothing.so")

    fails(judged(toolkit_claim), "cuda-12.6/lib64/libcusolverMg.so.12")
