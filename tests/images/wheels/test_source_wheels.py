"""Recipes and their keys, the nvcc shim, what a failed compilation says, the wheel cache: no engine, no compiler."""

import hashlib
import importlib.util
import io
import json
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from images.config import matrix, paths
from images.context.base_context import BaseContext
from images.engine.failures import BuildFailed
from images.errors import Problem, UserError
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.wheels import compiled as source_wheels
from images.wheels import prebuilt
from images.wheels.cache import WheelCache
from images.wheels.compiled import BaseCompilers, Recipe

SOURCES = matrix.load()
GIB = 1024**3


def image(name: str) -> Image:
    (planned,) = plan.select([name], SOURCES)
    assert planned.image is not None, planned.reasons
    return planned.image


def recipe(name: str = "cu130-torch211-sm90", package: str = "causal-conv1d") -> Recipe:
    return source_wheels.recipe(image(name), package, SOURCES.matrix)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, source_wheels.FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


NVCC = script("nvcc")
RECORD = script("record")


# --- recipes and keys -----------------------------------------------------------------------------------------------


def test_a_recipe_says_what_the_wheel_depends_on() -> None:
    found = recipe()
    assert (found.torch, found.wheel_cuda, found.toolkit, found.python) == ("2.11.0", "13.0", "13.0", "3.11")
    assert found.archs == ("sm_90",)
    assert found.provider == "wheels"
    assert "nvidia-cuda-nvcc==13.0.88" in found.parts
    assert found.key.startswith("causal-conv1d-1.7.0-")


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1.7.1"},
        {"sdist": "0" * 64},
        {"environment": {}},
        {"torch": "2.11.1"},
        {"wheel_cuda": "13.2"},
        {"cxx11_abi": False},
        {"python": "3.12"},
        {"base": "trixie"},
        {"gcc": 14},
        {"provider": "image"},
        {"toolkit": "13.2"},
        {"parts": ()},
        {"archs": ("sm_80", "sm_90")},
        {"ptx": ("sm_90",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_matters_moves_the_key(change: dict[str, object]) -> None:
    assert replace(recipe(), **change).key != recipe().key


def test_the_key_is_the_same_for_all_images_that_ask_the_same() -> None:
    assert recipe("cu130-torch211-sm90-devel").key == recipe().key
    assert replace(recipe(), job_memory=9).key == recipe().key


def test_archs_below_a_packages_floor_are_not_asked_of_it() -> None:
    assert "sm_75" in recipe("cu130-torch211").archs
    found = recipe("cu128-torch28", "flash-attn")
    assert found.archs[0] == "sm_80"
    assert found.environment["FLASH_ATTN_CUDA_ARCHS"].startswith("80;86;90")
    assert found.version == "2.8.3"


def test_what_compiles_no_gpu_code_needs_no_nvcc() -> None:
    found = recipe("cu128-torch28", "deepspeed")
    assert (found.provider, found.parts, found.archs, found.toolkit, found.home) == ("none", (), (), "", "")


@pytest.mark.parametrize(
    ("name", "package", "said"),
    [
        ("cu130-torch211", "numpy", "is no package that is compiled here"),
        ("cu130-torch214", "flash-attn", "compiles on torch <2.14"),
        ("cu130-torch211", "colossalai", r"compiles on torch >=2.2,<=2.5.1"),
        ("cu126-torch25-sm70", "causal-conv1d", "compiles for sm_75 and newer"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(name: str, package: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        recipe(name, package)


@pytest.mark.parametrize(
    ("name", "provider", "part"),
    [
        ("cu130-torch211", "wheels", "nvidia-cuda-nvcc==13.0.88"),
        ("cu128-torch28", "image", "nvidia/cuda:12.8.1-devel-ubuntu22.04"),
        ("cu124-torch26", "debian", "trixie"),
    ],
)
def test_the_matrix_says_where_nvcc_comes_from(name: str, provider: str, part: str) -> None:
    found = recipe(name)
    assert found.provider == provider
    assert part in found.parts


def test_debians_packages_are_unpacked_into_nvidias_layout() -> None:
    files = context("cu124-torch26", "causal-conv1d")
    assert "debian_toolkit.sh 12.4 trixie" in files["Dockerfile"]
    assert "shim.sh /usr/local/cuda-12.4" in files["Dockerfile"]


def test_no_provider_is_told_with_what_would_provide() -> None:
    toolkits = {
        **SOURCES.matrix.toolkits,
        "12.4": SOURCES.matrix.toolkits["12.4"].model_copy(update={"compiler": None}),
    }
    without = SOURCES.matrix.model_copy(update={"toolkits": toolkits})
    with pytest.raises(UserError, match=r"no nvcc for CUDA 12\.4 here.*names no provider"):
        source_wheels.recipe(image("cu124-torch26"), "causal-conv1d", without)


@pytest.mark.parametrize(
    ("cpus", "memory", "jobs"), [(2, 24 * GIB, 2), (16, 128 * GIB, 16), (16, 24 * GIB, 6), (16, 2 * GIB, 1)]
)
def test_jobs_follow_cores_and_memory(cpus: int, memory: int, jobs: int) -> None:
    assert source_wheels.jobs_for(recipe("cu128-torch28", "flash-attn"), cpus, memory) == jobs


def test_the_verb_says_what_can_be_compiled() -> None:
    command = [sys.executable, "-m", "images", "wheels", "cu130-torch212"]
    found = subprocess.run(command, cwd=matrix.ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "pins nothing that is compiled here" in found.stderr
    assert "nox -s wheels -- cu130-torch212 PACKAGE" in found.stderr


# --- the builder's context ------------------------------------------------------------------------------------------


def context(name: str, package: str) -> dict[str, str]:
    wanted = image(name)
    made = recipe(name, package)
    files = source_wheels.context(wanted, made, BaseContext(reference="base:1", origin="tag"), {"host/env": b""}, 2)
    return {path: content.decode() for path, content in files.items() if isinstance(content, bytes)}


def test_the_builder_is_the_devel_images_stages_with_the_shim() -> None:
    files = context("cu130-torch211-sm90", "causal-conv1d")
    dockerfile = files["Dockerfile"]
    stages = [line for line in dockerfile.splitlines() if line.startswith("FROM")]
    expected = "system tools cuda torch toolkit compiler builder proof".split()
    assert [line.split(" AS ")[1] for line in stages] == expected
    assert "toolkit.sh /opt/venv/bin/python 13.0 whole" in dockerfile
    assert "shim.sh /usr/local/cuda-13.0" in dockerfile
    assert "MAX_JOBS=2 sh /run/recipe/compile.sh" in dockerfile
    assert "export TRUETAG_ARCHS=90\n" in files["recipe/env"]
    assert "export TORCH_CUDA_ARCH_LIST=9.0\n" in files["recipe/env"]
    assert recipe().sdist in files["recipe/source.txt"]
    assert "nvidia-cuda-nvcc==13.0.88" in files["locks/toolkit.txt"]


def test_the_torch_layer_is_the_images_own_byte_for_byte() -> None:
    """So that the engine has it already where the image was built."""
    golden = (matrix.ROOT / "tests/golden/cu130-torch211-devel.Dockerfile").read_text()
    ours = context("cu130-torch211-sm90", "causal-conv1d")["Dockerfile"]
    for name in ("cuda", "torch"):
        layer = next(part for part in golden.split("# ---- ") if part.startswith(f"{name}:")).partition("\n")[2].strip()
        assert layer in ours


def test_without_nvcc_there_is_no_toolkit_in_the_builder() -> None:
    files = context("cu128-torch28", "deepspeed")
    assert "toolkit" not in files["Dockerfile"]
    assert "shim.sh" not in files["Dockerfile"]
    assert files["recipe/env"] == "export DS_BUILD_OPS=0\n"


def test_nvidias_image_lends_its_toolkit() -> None:
    dockerfile = context("cu128-torch28", "causal-conv1d")["Dockerfile"]
    assert "FROM nvidia/cuda:12.8.1-devel-ubuntu22.04 AS nvidia" in dockerfile
    assert "shim.sh /usr/local/cuda-12.8" in dockerfile


def test_rendered_builders_pass_hadolint(tmp_path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    for name, package in (("cu130-torch211-sm90", "causal-conv1d"), ("cu128-torch28", "deepspeed")):
        file = tmp_path / "Dockerfile"
        file.write_text(context(name, package)["Dockerfile"])
        found = subprocess.run([str(hadolint), str(file)], capture_output=True, text=True, check=False)
        assert found.returncode == 0 and not found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize("path", sorted(source_wheels.FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_posix_shell(path: Path) -> None:
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_a_source_archive_of_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "causal_conv1d-1.7.0.tar.gz").write_bytes(b"something else")
    with pytest.raises(UserError, match="holds no source archive of causal-conv1d"):
        source_wheels.context(
            image("cu130-torch211"), recipe(), BaseContext(reference="b", origin="tag"), {}, 1, tmp_path
        )


COMPILERS = BaseCompilers(digest="sha256:1", gcc=13, nvcc="Build cuda_13.0.r13.0/compiler.36424714_0")


def test_on_a_custom_base_the_wheel_is_that_bases_alone() -> None:
    there = source_wheels.for_base(COMPILERS, recipe())
    assert (there.base, there.gcc, there.provider, there.parts) == ("sha256:1", 13, "base", (COMPILERS.nvcc,))
    assert there.key != recipe().key
    assert source_wheels.for_base(replace(COMPILERS, digest="sha256:2"), recipe()).key != there.key
    assert source_wheels.for_base(replace(COMPILERS, nvcc=""), recipe()).provider == "wheels"
    assert source_wheels.for_base(None, recipe()) == recipe()
    without_gpu_code = recipe("cu128-torch28", "deepspeed")
    assert source_wheels.for_base(COMPILERS, without_gpu_code).provider == "none"


def test_a_custom_bases_own_toolkit_and_torch_are_not_installed_again() -> None:
    wanted = image("cu130-torch211-sm90")
    names = {package.name for package in lock_file.read(wanted).layers["torch"]}
    base_context = BaseContext(reference="own:1", origin="custom", python=True, kept=frozenset(names))
    files = source_wheels.context(
        wanted, source_wheels.for_base(COMPILERS, recipe()), base_context, {"host/env": b""}, 2
    )
    dockerfile = bytes(files["Dockerfile"]).decode()
    assert "locks/toolkit.txt" not in files and "--require-hashes -r /run/locks/torch.txt" not in dockerfile
    assert "FROM torch AS compiler" in dockerfile


def test_offline_everything_that_builds_lies_in_the_wheelhouse(tmp_path: Path) -> None:
    wanted = image("cu130-torch211-sm90")
    names = {package.name for package in lock_file.read(wanted).layers["torch"]}
    base_context = BaseContext(reference="own:1", origin="custom", python=True, kept=frozenset(names))
    with pytest.raises(UserError) as caught:
        source_wheels.context(
            wanted,
            source_wheels.for_base(COMPILERS, recipe()),
            base_context,
            {"host/env": b""},
            2,
            wheelhouse=tmp_path,
            offline=True,
        )
    (problem,) = caught.value.problems
    assert "uv 0.13.8" in problem.cause and "setuptools 80.9.0" in problem.cause and "torch" not in problem.cause


def test_a_toolkit_that_nobody_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = replace(recipe(), parts=("nvidia-cuda-nvcc==1.2.3",))
    with pytest.raises(UserError, match="nox -s lock -- cu130-torch211-devel"):
        source_wheels.context(image("cu130-torch211"), wanted, BaseContext(reference="b", origin="tag"), {}, 1)
    assert paths.workspace().locks.is_dir()


# --- the shim -------------------------------------------------------------------------------------------------------

TEN = [
    word
    for arch in (75, 80, 87, 90, 100, 120, 103, 110, 121)
    for word in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")
]
"""What causal-conv1d 1.7.0 asks nvcc 13.0 for."""


def rewritten(given: list[str], archs: list[int], ptx: list[int] | None = None) -> list[str]:
    arguments, _ = NVCC.rewrite(["-c", "x.cu", *given, "-o", "x.o"], archs, ptx or [])
    assert arguments[:4] == ["-c", "x.cu", "-o", "x.o"]
    return [word for word in arguments[4:] if word != "-gencode"]


SM90 = "arch=compute_90,code=sm_90"


@pytest.mark.parametrize(
    ("given", "archs", "ptx", "left"),
    [
        (TEN, [90], [], [SM90]),
        (TEN, [80, 90], [], ["arch=compute_80,code=sm_80", SM90]),
        (TEN, [86], [], ["arch=compute_80,code=sm_80"]),
        (["-gencode=arch=compute_90,code=[sm_90,compute_90]"], [90], [], [SM90]),
        (["-gencode=arch=compute_90,code=compute_90"], [90], [90], ["arch=compute_90,code=compute_90", SM90]),
        (["--generate-code", "arch=compute_90,code=sm_90"], [90], [], [SM90]),
        (["--generate-code=arch=compute_90a,code=sm_90a"], [90], [], ["arch=compute_90a,code=sm_90a"]),
        (["-gencode=arch=compute_90a,code=sm_90a"], [90, 100], [], ["arch=compute_90a,code=sm_90a"]),
        ([], [90], [], [SM90]),
        ([], [80, 90], [90], ["arch=compute_80,code=sm_80", SM90, "arch=compute_90,code=compute_90"]),
        (["-arch=sm_75"], [90], [], [SM90]),
        (["-arch", "sm_90"], [90], [], [SM90]),
        (["-arch=native"], [90], [], [SM90]),
        (["--gpu-architecture=compute_80", "--gpu-code=sm_80"], [90], [], [SM90]),
        (["-gencode", "arch=compute_53,code=sm_53", "-gencode", "arch=compute_70,code=sm_70"], [90], [], [SM90]),
    ],
)
def test_the_shim_keeps_what_was_asked_for(given: list[str], archs: list[int], ptx: list[int], left: list[str]) -> None:
    assert rewritten(given, archs, ptx) == left


def test_the_shim_says_what_it_did() -> None:
    _, change = NVCC.rewrite(TEN, [90], [])
    assert len(change.given) == 9
    assert change.kept == [SM90]
    assert change.added == []
    _, change = NVCC.rewrite(["-O3"], [90], [])
    assert (change.given, change.kept, change.added) == ([], [], [SM90])


@pytest.fixture
def installed(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The shim as the builder has it, before a ccache and an nvcc that print what they are called with."""
    for name in ("real-nvcc", "ccache"):
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        tool.chmod(0o755)
    shim = tmp_path / "nvcc"
    shim.write_bytes((source_wheels.FOLDER / "nvcc.py").read_bytes())
    shim.chmod(stat.S_IRWXU)
    told = {
        "TRUETAG_ARCHS": "90",
        "TRUETAG_NVCC": str(tmp_path / "real-nvcc"),
        "TRUETAG_NVCC_LOG": str(tmp_path / "log"),
    }
    return shim, {"PATH": f"{tmp_path}:/usr/bin:/bin", **told}


def call(shim: Path, env: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-I", "-S", str(shim), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_the_shim_hands_on_through_ccache_and_logs(installed: tuple[Path, dict[str, str]]) -> None:
    shim, env = installed
    said = call(shim, env, *TEN, "-c", "/src/a.cu", "-o", "a.o")
    assert said == f"ccache {env['TRUETAG_NVCC']} -c /src/a.cu -o a.o -gencode {SM90}"
    entry = json.loads(Path(env["TRUETAG_NVCC_LOG"]).read_text())
    assert (entry["sources"], entry["kept"]) == (["a.cu"], [SM90])


def test_questions_go_to_the_real_nvcc_untouched(installed: tuple[Path, dict[str, str]]) -> None:
    shim, env = installed
    assert call(shim, env, "-V") == "real-nvcc -V"
    assert not Path(env["TRUETAG_NVCC_LOG"]).exists()


def test_a_setup_that_asks_for_the_gpu_is_told_the_newest_arch(tmp_path: Path) -> None:
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text("def get_device_capability(): raise RuntimeError\n")
    ask = "import torch.cuda; print(torch.cuda.get_device_capability())"
    env = {"PYTHONPATH": f"{source_wheels.FOLDER}:{tmp_path}", "TRUETAG_ARCHS": "80 120 90"}
    command = [sys.executable, "-B", "-c", ask]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip() == "(12, 0)"


# --- the record -----------------------------------------------------------------------------------------------------

CCACHE_LOG = """# /build/src/csrc/a.cu
cache_miss
direct_cache_miss
local_storage_miss
preprocessed_cache_miss
# /build/src/csrc/b.cu
direct_cache_hit
local_storage_hit
# /build/src/csrc/c.cpp
preprocessed_cache_hit
# unknown
called_for_link
# /build/src/csrc/d.cu
unsupported_compiler_option
"""


def test_objects_are_counted_by_where_they_came_from() -> None:
    assert RECORD.objects(CCACHE_LOG) == {"compiled": 1, "from_cache": 2, "not_cached": 1}
    assert RECORD.objects("") == {"compiled": 0, "from_cache": 0, "not_cached": 0}


def test_the_shims_doing_is_summed_up() -> None:
    lines = [
        {"sources": ["a.cu"], "given": ["arch=compute_75,code=sm_75", SM90], "kept": [SM90], "added": []},
        {"sources": ["b.cu"], "given": [], "kept": [], "added": [SM90]},
    ]
    found = RECORD.shim("".join(f"{json.dumps(line)}\n" for line in lines))
    assert found["commands"] == 2
    assert (found["kept"], found["added"], found["dropped"]) == ([SM90], [SM90], ["arch=compute_75,code=sm_75"])


# --- what a failed compilation says ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "cause", "then"),
    [
        (
            ["[1/9] nvcc", '/build/src/csrc/a.cu(12): error: identifier "foo" is undefined', "1 error detected"],
            'did not compile: a.cu:12: identifier "foo" is undefined',
            "read /logs/x.log",
        ),
        (
            ["/build/src/csrc/b.cpp:7:10: fatal error: nope.h: No such file or directory", "ninja: build stopped"],
            "did not compile: b.cpp:7: nope.h: No such file or directory",
            "read /logs/x.log",
        ),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_53'"], "Unsupported gpu architecture", "read"),
        (["  RuntimeError: the sources need CUDA 12"], "RuntimeError: the sources need CUDA 12", "read"),
        (["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"], "ran out of memory", "--jobs N"),
        (["c++: fatal error: Killed signal terminated program cc1plus"], "ran out of memory", "--jobs N"),
    ],
)
def test_a_failed_compilation_names_package_file_error_and_log(lines: list[str], cause: str, then: str) -> None:
    failed = BuildFailed(step="RUN sh /run/recipe/compile.sh", error="exit code: 1", log=lines)
    problem = source_wheels.explained(recipe(), lines, failed, Path("/logs/x.log"))
    assert problem.where == "causal-conv1d 1.7.0"
    assert cause in problem.cause
    assert then in problem.then


# --- the wheel cache -------------------------------------------------------------------------------------------------


def test_a_kept_wheel_is_found_by_its_key(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path / "compiled")
    assert cache.find("key") is None
    kept = cache.store("key", "a-1-py3-none-any.whl", b"wheel", {"seconds": 1})
    assert cache.find("key") == kept
    assert kept.record["sha256"] == hashlib.sha256(b"wheel").hexdigest()
    assert [path.name for path in cache.folder.iterdir()] == ["key"]


def test_a_damaged_wheel_is_told_and_not_taken_and_can_be_kept_anew(tmp_path: Path) -> None:
    cache, said = WheelCache(tmp_path), list[str]()
    cache.store("key", "a-1-py3-none-any.whl", b"wheel", {})
    (tmp_path / "key" / "a-1-py3-none-any.whl").write_bytes(b"other")
    assert cache.find("key", said.append) is None
    assert "not what its record says" in said[0]
    (tmp_path / "key" / "record.json").write_text("{")
    assert cache.find("key", said.append) is None
    cache.store("key", "a-1-py3-none-any.whl", b"wheel", {})
    assert cache.find("key") is not None


def test_an_image_takes_the_wheel_of_its_own_key(tmp_path: Path) -> None:
    wanted, cache = image("cu128-torch28"), WheelCache(tmp_path / "compiled")
    finder = source_wheels.wheel_finder(SOURCES.matrix, cache)
    pin = wanted.pin("flash-attn")
    assert pin is not None
    assert finder(wanted, pin) is None
    key = recipe("cu128-torch28", "flash-attn").key
    kept = cache.store(key, "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", b"wheel", {})
    found = prebuilt.gather(wanted, wheelhouse=None, cache=tmp_path / "cache", fetch=refuse, compiled=finder)
    assert found.files == {kept.wheel.name: kept.wheel}
    other = prebuilt.gather(
        image("cu126-torch28"), wheelhouse=None, cache=tmp_path / "c", fetch=refuse, compiled=finder
    )
    assert other.files == {}


def test_an_image_on_a_base_that_has_torch_takes_the_wheel_compiled_there(tmp_path: Path) -> None:
    wanted, cache = image("cu130-torch211-py312-sm90"), WheelCache(tmp_path / "compiled")
    given = BaseCompilers(digest="sha256:b", gcc=13, nvcc="Build 1")
    recipe_there = source_wheels.for_base(given, source_wheels.recipe(wanted, "flash-attn", SOURCES.matrix))
    kept = cache.store(recipe_there.key, "flash_attn-2.8.3.post2-cp312-cp312-linux_x86_64.whl", b"wheel", {})
    finder = source_wheels.wheel_finder(SOURCES.matrix, cache, lambda _image: given)
    found = prebuilt.gather(wanted, wheelhouse=None, cache=tmp_path, kept={"torch"}, fetch=refuse, compiled=finder)
    assert found.files == {kept.wheel.name: kept.wheel} and not found.missing


def test_a_package_that_the_base_has_is_not_looked_for(tmp_path: Path) -> None:
    found = prebuilt.gather(image("cu128-torch28"), wheelhouse=None, cache=tmp_path, kept={"flash-attn"}, fetch=refuse)
    assert not found.files and not found.missing


def test_a_base_whose_compilers_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    def unreadable(_image: object) -> BaseCompilers:
        raise UserError(Problem(where="own:1", cause="can't be read", then="look"))

    finder = source_wheels.wheel_finder(SOURCES.matrix, WheelCache(tmp_path), unreadable)
    pin = image("cu128-torch28").pin("flash-attn")
    assert pin is not None
    with pytest.raises(UserError, match="own:1: can't be read"):
        finder(image("cu128-torch28"), pin)


def refuse(url: str, target: Path) -> None:
    raise OSError("no route to host")


def test_the_libraries_of_a_wheel_are_named() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("a/b.so", "c.cpython-311-x86_64-linux-gnu.so", "d.py", "e.so.12", "f.sonnet"):
            archive.writestr(name, b"")
    assert source_wheels.libraries(content.getvalue()) == ("a/b.so", "c.cpython-311-x86_64-linux-gnu.so", "e.so.12")
