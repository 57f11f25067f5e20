"""Static probes and their judges, on small environments laid out for the purpose: each fault is named."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.planning import expectations
from tests.support import elves
from tests.support.judging import fails, judge_claim, says
from tests.support.wheels import record_hash
from validate.binaries import loader
from validate.checks.static import assemblers, environment, files, libraries, pins, toolkit
from validate.claims import Claim, Tier
from validate.environment import installed, user_environment
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, Status
from validate.survey import environments

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
LIB = f"venv/lib/python{PYTHON}/site-packages"


def claim(id: str, subject: str, probe: str, **expect: Any) -> Claim:  # noqa: A002
    return Claim(
        check=id,
        subject=subject,
        tier=Tier.STATIC,
        probe=f"static.{probe}",
        statement="-",
        expect=expect,
    )


class Site:
    """A folder of packages that an interpreter gets through PYTHONPATH."""

    def __init__(self, root: Path, given: Callable[..., None]) -> None:
        self.root = root
        self._given = given

    def install(
        self,
        name: str = "pkg",
        version: str = "1.0",
        contents: dict[str, bytes] | None = None,
        *,
        tag: str = "py3-none-any",
    ) -> None:
        """A distribution, by default of one empty module."""
        lines = []
        for path, content in (
            {f"{name}/__init__.py": b""} if contents is None else contents
        ).items():
            self.write(path, content)
            lines.append(f"{path},{record_hash(content)},{len(content)}")
        info = self.root / f"{name}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nRead me\n"
        )
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,", ""]))

    def write(self, path: str, content: bytes = b"") -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    def start_with(self, **environ: str) -> None:
        self._given(**environ)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An environment of its own: its packages are all that an interpreter finds."""
    packages, home = tmp_path / "site", tmp_path / "home"
    packages.mkdir()
    home.mkdir()

    def given(**environ: str) -> None:
        own = {"PATH": "/nonexistent", "HOME": str(home), "PYTHONPATH": str(packages)}
        found = UserEnvironment(environ={**own, **environ}, directory=str(home), python="")
        monkeypatch.setattr(
            user_environment, "recorded", lambda: environments.with_start_from_files(found)
        )

    given()
    for folder in (LIB, "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / f"venv/bin/python{PYTHON}").write_bytes(elves.make(exports=["PyLong_FromLong"]))
    monkeypatch.setattr(environments, "package_folders", lambda: [str(tmp_path / LIB)])
    # This machine's own libraries and settings are not what is tested.
    monkeypatch.setattr(loader, "read_cache", lambda _data, _machine: {})
    at_home = tuple(file for file in environment._SETTINGS_FILES if file.startswith("~"))
    monkeypatch.setattr(environment, "_SETTINGS_FILES", at_home)
    return Site(packages, given)


def judged(probe: Any, asked: Claim) -> Finding:
    for kept in (installed.read_user_python, libraries.read_user_libraries):
        kept.cache_clear()
    ((subject, evidence),) = probe.measure([asked])
    assert subject == asked.subject
    return judge_claim(asked, evidence)


# ---- `pins`

PIN = claim(
    "pins", "pkg", "pins", version="1.0", locals=[""], modules=["pkg"], python=PYTHON, shares=[]
)


def _shadowed_by_a_path(site: Site) -> None:
    site.install()
    site.write("../other/pkg.py")
    site.start_with(PYTHONPATH=f"{site.root.parent}/other:{site.root}")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda site: site.install(), ""),
        (lambda site: None, "not installed"),
        (lambda site: site.install(version="1.1"), "pkg 1.1 is installed, 1.0 is expected"),
        (lambda site: site.install(version="1.0+cpu"), "1.0+cpu"),
        (lambda site: [site.install(), site.write("../home/pkg.py")], "found through {home}"),
        (_shadowed_by_a_path, "other/pkg.py of no distribution"),
        (
            lambda site: [site.install(), site.install("rival", "2", {"pkg/a.py": b""})],
            "rival also installs files",
        ),
        (
            lambda site: [site.install(), site.install(version="0.9", contents={})],
            "installed 2 times",
        ),
        (lambda site: site.install(contents={}), "can't be found"),
        (lambda site: site.install(contents={"pkg/data.txt": b""}), "namespace"),
    ],
)
def test_a_pin_that_is_something_else_fails(
    site: Site, fault: Callable[[Site], object], words: str
) -> None:
    fault(site)
    says(judged(pins, PIN), words.format(home=site.root.parent / "home"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            b"__version__ = '2.7.1+cu126'\nfrom typing import Optional\ncuda: Optional[str] = '12.6'\n",
            "",
        ),
        (b"__version__ = '2.7.1+cpu'\ncuda = None\n", "for no CUDA at all"),
        (b"__version__ = '2.7.1+cu128'\ncuda: str = '12.8'\n", "for CUDA 12.8"),
        (b"__version__ = '2.7.0+cu126'\ncuda = '12.6'\n", "says 2.7.0+cu126"),
        (b"this is no python\n", "for no CUDA at all"),
    ],
)
def test_a_torch_of_the_same_number_must_be_for_cuda(site: Site, source: bytes, words: str) -> None:
    site.install("torch", "2.7.1", {"torch/__init__.py": b"", "torch/version.py": source})
    expect = {**PIN.expect, "version": "2.7.1", "modules": ["torch"], "cuda": "12.6"}
    says(judged(pins, claim("pins", "torch", "pins", **expect)), words)


@pytest.mark.parametrize(
    ("closed", "versions", "words"),
    [
        (True, {"pkg": "1.0", "dep": "2"}, ""),
        (True, {"pkg": "1.0"}, "dep 2 is installed, but not in the lock"),
        (False, {"pkg": "1.0"}, ""),
        (True, {"pkg": "1.0", "dep": "3"}, "dep 2 is installed, the lock has 3"),
        (True, {"pkg": "1.0", "dep": "2", "gone": "1"}, "gone 1 is not installed"),
    ],
)
def test_the_closure_is_the_locks(
    site: Site, closed: bool, versions: dict[str, str], words: str
) -> None:
    site.install()
    site.install("dep", "2")
    says(judged(pins, claim("pins", "lock", "pins", versions=versions, closed=closed)), words)


# ---- `files`

FILES = claim("files", "recorded", "files", unowned=expectations.START_FILES)


def test_files_as_recorded_pass_and_none_at_all_fail(site: Site) -> None:
    fails(judged(files, FILES), "no distribution lists a single file")
    site.install(
        "pkg", "1.0", {"pkg/__init__.py": b"x = 1\n", "../bin/tool": b"#!/usr/bin/python\n"}
    )
    site.install("other", "1.0", {"ns/__init__.py": b"", "ns/a.py": b""})
    site.install("third", "1.0", {"ns/__init__.py": b"", "ns/b.py": b""})
    site.write("pkg/__pycache__/__init__.cpython-311.pyc", b"anything")
    site.install(
        "ships_bytecode", "1.0", {"sb/a.py": b"", "sb/__pycache__/a.cpython-311.pyc": b"old"}
    )
    site.write("sb/__pycache__/a.cpython-311.pyc", b"compiled anew")
    site.write("_virtualenv.pth", b"import _virtualenv")
    assert judged(files, FILES).status is Status.PASS
    site.install("odd", "1.0", {"odd/__pycache__/a.so": b""})
    site.write("odd/__pycache__/a.so", b"which is no bytecode")
    fails(judged(files, FILES), "__pycache__/a.so of odd 1.0 is altered")


def test_a_missing_file_an_altered_one_and_one_of_two_owners_are_named(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/__init__.py": b"x = 1\n", "pkg/lib.so": b"\x7fELF"})
    site.write("pkg/__init__.py", b"x = 2\n")
    (site.root / "pkg/lib.so").unlink()
    record = site.root / "pkg-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "pkg/gone.py,sha256==,1\n")
    site.install("nccl-cu13", "2.28", {"nccl/lib.so.2": b"thirteen"})
    site.install("nccl-cu12", "2.26", {"nccl/lib.so.2": b"twelve"})
    conflict = ("claimed by nccl-cu12 2.26 and nccl-cu13 2.28", "holds nccl-cu12 2.26's")
    fails(
        judged(files, FILES),
        "__init__.py of pkg 1.0 is altered",
        "pkg/lib.so of pkg 1.0 is missing",
        "gone.py",
        *conflict,
    )


def test_a_padded_hash_is_that_of_the_file_and_in_no_conflict(site: Site) -> None:
    site.install("nccl-cu12", "2.26", {"nccl/lib.so.2": b"same"})
    site.install("nccl-cu13", "2.28", {"nccl/lib.so.2": b"same"})
    record = site.root / "nccl-cu13-2.28.dist-info/RECORD"
    padded = record.read_text().replace(",4\n", "=,4\n", 1)
    assert padded != record.read_text()
    record.write_text(padded)

    assert judged(files, FILES).status is Status.PASS


def test_a_record_that_can_not_be_read_is_told(site: Site) -> None:
    site.install("two", "1.0", {"two/a.py": b""})
    site.install("one", "1.0", {"one/a.py": b""})
    (site.root / "two-1.0.dist-info/RECORD").write_bytes(b"two/a.py,\xff\n")
    fails(judged(files, FILES), "two in", "has no readable RECORD")


@pytest.mark.parametrize(
    "planted", ["flash_attn/__init__.py", "zz.pth", "pkg/extra.so.1", "stale.pyc"]
)
def test_code_that_no_distribution_owns_fails(site: Site, planted: str) -> None:
    site.install()
    site.write(planted)
    fails(judged(files, FILES), planted)


# ---- `libraries`

LINKED = claim(
    "libraries",
    "environment",
    "libraries",
    of="environment",
    cuda_libraries=expectations.cuda_libraries(12),
    host=list(expectations.HOST_LIBRARIES),
    other_platforms=list(expectations.OTHER_PLATFORMS),
    exceptions=list(expectations.LINK_EXCEPTIONS),
)


def _torch(site: Site) -> None:
    """A torch whose closure is CUDA 12's runtime, found through RPATH."""
    needs = {
        "needed": ["libcudart.so.12"],
        "rpath": "$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN",
    }
    site.install(
        "torch",
        "2.7.1",
        {
            "torch/lib/libtorch_global_deps.so": elves.make(
                soname="libtorch_global_deps.so", **needs
            ),  # type: ignore[arg-type]
            "torch/lib/libtorch_python.so": elves.make(needed=["libtorch.so"], rpath="$ORIGIN"),
            "torch/lib/libtorch.so": elves.make(soname="libtorch.so", needed=["libcuda.so.1"]),
        },
    )
    runtime = {"nvidia/cuda_runtime/lib/libcudart.so.12": elves.make(soname="libcudart.so.12")}
    site.install("nvidia_cuda_runtime_cu12", "12.6.77", runtime)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (("cuda126", "cuda130", "cuda118", "rocm62"), ""),
        (("cuda130", "cuda118"), "libbnb_cuda130.so of bnb needs libcudart.so.13"),
        (("rocm62",), "needs libhipblas.so.2"),
        (("cuda126", "cpu"), "libbnb_cpu.so of bnb needs libgomp-x.so.1"),
    ],
)
def test_an_alternative_is_excused_by_a_sibling_that_serves(
    site: Site, versions: tuple[str, ...], words: str
) -> None:
    """Alternatives for several platforms, as bitsandbytes ships them."""
    needs = {
        "cuda126": ["libcudart.so.12"],
        "cuda130": ["libcudart.so.13"],
        "cuda118": ["libcudart.so.11.0"],
        "rocm62": ["libhipblas.so.2"],
        "cpu": ["libgomp-x.so.1"],
    }
    _torch(site)
    site.install(
        "bnb", "0.49", {f"bnb/libbnb_{key}.so": elves.make(needed=needs[key]) for key in versions}
    )
    says(judged(libraries, LINKED), words)


CUDA_13 = elves.make(needed=["libcudart.so.13"])


@pytest.mark.parametrize(
    ("installed", "beside", "words"),
    [
        ({"torchao/_C.abi3.so": CUDA_13}, "", "torchao/_C.abi3.so of pkg needs libcudart.so.13"),
        # though a toolkit supplies it
        (
            {"pkg/_C.so": CUDA_13},
            "libcudart.so.13",
            "needs libcudart.so.13 of another CUDA major than torch's",
        ),
        # though all is found
        (
            {"nvidia/libcudart.so.13": elves.make(soname="libcudart.so.13")},
            "",
            "libcudart.so.13: another CUDA major",
        ),
        ({}, "libcudart.so.12", "toolkit/libcudart.so.12"),  # a rival
        (
            {"lib/foo/stubs/_C.so": elves.make(needed=["libgone.so.1"])},
            "",
            "stubs/_C.so of pkg needs libgone.so.1",
        ),
        *(
            (
                {"pkg/_C.so": content},
                "",
                "pkg/_C.so can't be loaded",
            )  # no library in spite of its name
            for content in (
                b"",
                b"version https://git-lfs",
                elves.make()[:100],
                elves.make(machine=183),
            )
        ),
    ],
)
def test_a_library_that_is_another_than_it_should_be_fails(
    site: Site, installed: dict[str, bytes], beside: str, words: str
) -> None:
    """`beside` stands in a folder that LD_LIBRARY_PATH names."""
    _torch(site)
    site.install("pkg", "1.0", installed)
    if beside:
        site.write(f"../toolkit/{beside}", elves.make(soname=beside))
        site.start_with(LD_LIBRARY_PATH=str(site.root.parent / "toolkit"))
    fails(judged(libraries, LINKED), words)


def test_a_library_beside_is_assumed_to_be_loaded_first_and_what_torch_itself_misses_comes_first(
    site: Site,
) -> None:
    _torch(site)
    holds = {
        "pkg/core/libcore.so": elves.make(soname="libcore.so"),
        "pkg/_C.so": elves.make(needed=["libcore.so"]),
    }
    site.install("pkg", "1.0", holds)
    status, reason = judged(libraries, LINKED)
    assert status is Status.PASS and "taking _C.so to be loaded after their siblings" in reason
    (site.root / "nvidia/cuda_runtime/lib/libcudart.so.12").unlink()
    assert judged(libraries, LINKED).reason.startswith("`import torch` misses libcudart.so.12")


@pytest.fixture
def linked_toolkit(site: Site) -> Claim:
    """A -devel image's toolkit, and torch's CUDA library that lacks what torch loads before it."""
    site.install(
        "cusolver", "12", {"nvidia/lib/libcusolverMg.so.12": elves.make(needed=["libcublas.so.12"])}
    )
    site.write("../cuda-12.6/lib64/libcudart.so.12", elves.make(soname="libcudart.so.12"))
    home = site.root.parent / "cuda-12.6"
    (home / "lib64" / "libcusolverMg.so.12").symlink_to(
        site.root / "nvidia/lib/libcusolverMg.so.12"
    )
    exceptions = [*expectations.LINK_EXCEPTIONS, *expectations.TOOLKIT_EXCEPTIONS]
    expect = {**LINKED.expect, "of": "toolkit", "exceptions": exceptions, "home": str(home)}
    return replace(LINKED, subject="toolkit", expect=expect)


@pytest.mark.parametrize(
    ("path", "needed", "words"),
    [
        ("doc/text", "", ""),  # links to the environment are not its own
        ("targets/x86_64-linux/lib/stubs/libcusparse.so", "libgone.so.1", ""),  # a stub for linkers
        (
            "bin/cuda-gdb-python3.10-tui",
            "libpython3.10.so.1.0",
            "",
        ),  # for a Python that is not there
        ("bin/cuda-gdb-python3.10-tui", "libtinfo.so.99", "libtinfo"),
        ("bin/nsys", "libpython3.10.so.1.0", "libpython3.10"),
    ],
)
def test_some_of_a_toolkit_need_not_load(
    site: Site, linked_toolkit: Claim, path: str, needed: str, words: str
) -> None:
    site.write(f"../cuda-12.6/{path}", elves.make(needed=[needed]))
    says(judged(libraries, linked_toolkit), words)


@pytest.mark.parametrize(
    "place", ["../cuda-12.6/lib64/libx.so", "../elsewhere/libx.so", "../home/libx.so"]
)
def test_a_toolkits_library_that_lacks_another_fails(
    site: Site, linked_toolkit: Claim, place: str
) -> None:
    """Its own, or one that it links to and that no claim about the environment reads."""
    written = site.write(place, elves.make(needed=["libgone.so.1"]))
    site.start_with(PYTHONPATH=f"{site.root}:/")
    link = site.root.parent / "cuda-12.6/lib64/libx.so"
    if not link.exists():
        link.symlink_to(written)
    fails(
        judged(libraries, linked_toolkit),
        "cuda-12.6/lib64/libx.so of no distribution needs libgone.so.1",
    )


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_toolkits_link_that_leads_nowhere_fails(
    site: Site, linked_toolkit: Claim, through_a_link: bool
) -> None:
    (library := site.root / "nvidia/lib/libcusolverMg.so.12").unlink()
    if through_a_link:
        library.symlink_to(site.root / "nothing.so")
    fails(judged(libraries, linked_toolkit), "cuda-12.6/lib64/libcusolverMg.so.12")


# ---- `toolkit`


@pytest.fixture
def cuda(site: Site) -> Path:
    """A toolkit of CUDA 12.6, and a torch for it."""
    version = b"__version__ = '2.7.1'\ncuda = '12.6'\n"
    site.install("torch", "2.7.1", {"torch/__init__.py": b"", "torch/version.py": version})
    home = site.root.parent / "cuda-12.6"
    site.write("../cuda-12.6/bin/ptxas", b"\x7fELF\0Cuda, release 12.6, V12.6.85\0")
    site.write("../cuda-12.6/include/cuda_runtime_api.h", b"#define CUDART_VERSION  12060\n")
    site.write("../cuda-12.6/lib64/libcudart.so.12", elves.make(soname="libcudart.so.12"))
    (home / "lib64/libcudart.so").symlink_to("libcudart.so.12")
    site.write("../cuda-12.6/lib64/libnvrtc.so.12", elves.make(soname="libnvrtc.so.12"))
    site.write(
        "../cuda-12.6/lib64/libnvrtc-builtins.so.12.6",
        elves.make(soname="libnvrtc-builtins.so.12.6"),
    )
    site.start_with(CUDA_HOME=str(home))
    return home


def toolkit_claim(home: Path) -> Claim:
    parts = ["ptxas", "cudart", "cudart headers", "nvrtc"]
    return claim("toolkit", "cuda", "toolkit", home=str(home), version="12.6", parts=parts)


def test_a_module_of_a_package_is_found_in_the_package(site: Site) -> None:
    """flash-attn-4 brings flash_attn/cute, and no flash_attn/__init__.py."""
    site.install("flash-attn-4", "4.0", {"flash_attn/cute/__init__.py": b""})
    site.start_with()
    expect = {**PIN.expect, "version": "4.0", "modules": ["flash_attn.cute"]}
    found = claim("pins", "flash-attn-4", "pins", **expect)
    says(judged(pins, found), "")
    (site.root / "flash_attn/cute/__init__.py").unlink()
    fails(judged(pins, found), "flash_attn.cute")


@pytest.mark.parametrize(
    ("older", "newer", "words"),
    [
        ([75, 107], None, ""),
        ([75], [75, 107], ""),  # Triton has one of its own for Blackwell and later
        ([75, 107], [103], "bin/ptxas-blackwell does not know sm_107"),
        ([75], None, "bin/ptxas does not know sm_107"),
        ([], None, "bin/ptxas: it lists no GPU"),
        (None, None, "No such file"),
    ],
)
def test_an_assembler_knows_each_gpu_that_it_is_said_to_know(
    site: Site, older: list[int] | None, newer: list[int] | None, words: str
) -> None:
    site.install("triton", "3.9.0")
    site.start_with()
    for name, known in {"ptxas": older, "ptxas-blackwell": newer}.items():
        if known is not None:
            targets = ",".join(f"'sm_{arch}','sm_{arch}a'" for arch in known)
            site.write(f"nv/bin/{name}", f'#!/bin/sh\necho "{targets}"\n'.encode()).chmod(0o755)
    for folder in ("nv/bin", str(site.root / "nv/bin")):  # beside Triton, and a toolkit's
        finding = judged(
            assemblers, claim("toolkit", "ptxas", "assemblers", folder=folder, archs=[75, 107])
        )
        says(finding, words)


def test_an_assembler_that_crashes_after_its_list_is_a_fault(site: Site) -> None:
    site.install("triton", "3.9.0")
    site.start_with()
    script = b"#!/bin/sh\necho \"'sm_75'\"\nkill -SEGV $$\n"
    site.write("nv/bin/ptxas", script).chmod(0o755)
    crashing = claim("toolkit", "ptxas", "assemblers", folder="nv/bin", archs=[75])
    fails(judged(assemblers, crashing), "`ptxas --help` ended with status -11")


def test_another_minor_of_torch_is_a_warning_and_another_major_a_fault(
    site: Site, cuda: Path
) -> None:
    assert judged(toolkit, toolkit_claim(cuda)) == (Status.PASS, f"CUDA 12.6 in {cuda}, 4 parts")
    site.write("torch/version.py", b"__version__ = '2.5.1'\ncuda = '12.4'\n")
    finding = judged(toolkit, toolkit_claim(cuda))
    assert (finding.status, "WARNING: torch is built for 12.4" in finding.reason) == (
        Status.PASS,
        True,
    )
    site.write("torch/version.py", b"__version__ = '2.11.0'\ncuda = '13.0'\n")
    fails(judged(toolkit, toolkit_claim(cuda)), "majors must be equal")


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("bin/ptxas", b"\x7fELF\0release 12.4, V12.4.1\0", "ptxas is of CUDA 12.4"),
        ("bin/ptxas", b"#!/bin/sh\nexec /tmp/ptxas\n", "ptxas is of CUDA None"),
        ("bin/ptxas", None, "lacks ptxas"),
        ("include/cuda_runtime_api.h", b"#define CUDART_VERSION 12080\n", "is of CUDA 12.8"),
        (
            "lib64/libcudart.so.12",
            elves.make(soname="libcudart.so.13"),
            "libcudart.so.13, CUDA 12.6 is expected",
        ),
        ("lib64/libcudart.so.12", b"text", "is no shared library"),
        ("lib64/libnvrtc-builtins.so.12.6", None, "is of CUDA None"),
    ],
)
def test_a_part_that_is_another_is_named(
    cuda: Path, path: str, content: bytes | None, words: str
) -> None:
    if content is None:
        (cuda / path).unlink()
    else:
        (cuda / path).write_bytes(content)
    fails(judged(toolkit, toolkit_claim(cuda)), words)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"CUDA_HOME": "CUDA", "LD_LIBRARY_PATH": "/nowhere:CUDA/lib64"}, "shadow torch's"),
        ({"CUDA_HOME": "CUDA", "LD_LIBRARY_PATH": "CUDA/lib64/stubs"}, "stubs"),
        ({"CUDA_HOME": "CUDA", "LD_LIBRARY_PATH": "CUDA/compat"}, "forward-compatibility"),
        ({}, "CUDA_HOME is None"),
    ],
)
def test_variables_lead_to_the_toolkit_and_the_loader_does_not(
    site: Site, cuda: Path, environ: dict[str, str], words: str
) -> None:
    site.start_with(**{name: value.replace("CUDA", str(cuda)) for name, value in environ.items()})
    fails(judged(toolkit, toolkit_claim(cuda)), words)


# ---- `environment`

AROUND = claim(
    "environment",
    "variables",
    "environment",
    required={"CUDA_HOME": "/usr/local/cuda-12.6"},
    # The fixture needs PYTHONPATH to lend its packages.
    denied={
        name: why for name, why in expectations.DENIED_VARIABLES.items() if name != "PYTHONPATH"
    },
    start_files=expectations.START_FILES,
)


def around(site: Site, **environ: str) -> Finding:
    site.start_with(**{"CUDA_HOME": "/usr/local/cuda-12.6", **environ})
    return judged(environment, AROUND)


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("home/.bashrc", "export TRITON_INTERPRET=1", "sets TRITON_INTERPRET=1"),
        ("home/.profile", "NCCL_DEBUG=INFO", "sets NCCL_DEBUG=INFO"),
        ("home/.nccl.conf", "NCCL_P2P_DISABLE=1", ".nccl.conf is not empty"),
        # code that runs at every start must have an owner
        ("site/sitecustomize.py", "x = 1", "sitecustomize.py runs at every start of Python"),
        (f"{LIB}/leaves.pth", "import os; os._exit(0)", "leaves.pth runs at every start"),
    ],
)
def test_files_that_set_variables_and_code_of_every_start_are_read(
    site: Site, file: str, line: str, words: str
) -> None:
    (site.root.parent / file).write_text(f"# a comment\n{line}\n")
    fails(around(site), words)


MISLEADING = (
    "BNB_CUDA_VERSION TRITON_INTERPRET TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE NVIDIA_TF32_OVERRIDE "
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE NCCL_P2P_DISABLE ACCELERATE_DEEPSPEED_ZERO_STAGE FSDP_VERSION "
    "PARALLELISM_CONFIG_TP_SIZE WORLD_SIZE MASTER_ADDR CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING "
    "TRITON_PTXAS_PATH PYTORCH_JIT"
)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HF_TOKEN": "hush"}, ""),
        *(({name: "1"}, f"{name}=1 is set") for name in MISLEADING.split()),
        ({"PYTHONOPTIMIZE": "1"}, "every `assert`"),
        (
            {"CUDA_HOME": "/opt/cuda"},
            "CUDA_HOME is '/opt/cuda', '/usr/local/cuda-12.6' is expected",
        ),
    ],
)
def test_a_variable_that_misleads_fails(site: Site, environ: dict[str, str], words: str) -> None:
    says(around(site, **environ), words)


def test_a_file_that_the_reader_lies_over_is_not_taken_for_empty(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start_with(CUDA_HOME="/usr/local/cuda-12.6")
    covered = replace(user_environment.recorded(), hidden=["/etc/ld.so.preload"])
    monkeypatch.setattr(user_environment, "recorded", lambda: covered)
    says(
        judged(environment, AROUND),
        "/etc/ld.so.preload is not empty: what it holds can't be read here",
    )


def test_an_expected_variable_is_not_denied_and_secrets_stay_out_of_the_evidence(
    site: Site,
) -> None:
    site.start_with(NCCL_DEBUG="WARN", HF_TOKEN="hush")
    expected = replace(AROUND, expect={**AROUND.expect, "required": {"NCCL_DEBUG": "WARN"}})
    says(judged(environment, expected), "")
    assert "hush" not in str(list(environment.measure([expected])))
