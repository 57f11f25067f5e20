"""A small package of our own is compiled: for the right arch, once, resumed when interrupted."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from images.config.schema import SourceRow
from images.context.hosting import host_settings
from images.engine import Engine
from images.engine.failures import Cancelled
from images.engine.private_engine import open_engine
from images.engine.progress import Progress
from images.errors import UserError
from images.planning.image import Image, Pin
from images.wheels import builder, prebuilt
from images.wheels.builder import WheelOptions
from images.wheels.prebuilt import wheel_finder
from images.wheels.recipe import Recipe, recipe_for
from tests.support import sources as matrix
from tests.support.sources import SOURCES

pytestmark = pytest.mark.engine
ASKED = "arch=compute_90,code=sm_90"
TINY = Path(__file__).with_name("tiny")
SETUP = """
import glob
import os
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

flags = ["-O3"]
for arch in (75, 80, 90, 120):
    flags += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
host = ["-march=native", "-D__AVX512__"]
sources = ["module.cpp", *sorted(glob.glob("*.cu"))]
extension = CUDAExtension("tiny_cuda", sources, extra_compile_args={"cxx": host, "nvcc": flags})
setup(
    name="tiny",
    version="1.0",
    py_modules=["tiny"],
    ext_modules=[extension],
    cmdclass={"build_ext": BuildExtension},
)
"""


def sources(*names: str, **changed: str) -> dict[str, str]:
    """Return a package that nothing compiled before: its numbers are new in each test.

    names: of its kernels, each in a file of its own.
    changed: more files, and those that have another content.
    """
    new = uuid.uuid4().int % 10**6
    module, kernel = ((TINY / name).read_text() for name in ("module.cpp", "kernel.cu"))
    kernels = {
        f"{name}.cu": kernel.replace("NAME", name).replace("FACTOR", f"{new}.{place}")
        for place, name in enumerate(names)
    }
    return {
        "setup.py": SETUP,
        "tiny.py": "",
        "module.cpp": f"int number = {new};\n{module}",
        **kernels,
        **changed,
    }


def sdist(files: Mapping[str, str], folder: Path) -> str:
    """The source archive of a package in a folder. Returns its sha256."""
    everything = {**files, "PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in everything.items():
            member = tarfile.TarInfo(f"tiny-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    packed = gzip.compress(content.getvalue(), mtime=0)
    folder.mkdir(exist_ok=True)
    (folder / "tiny-1.0.tar.gz").write_bytes(packed)
    return hashlib.sha256(packed).hexdigest()


@pytest.fixture(scope="module")
def image() -> Image:
    return matrix.image("cu130-torch211-sm90")


def tiny(image: Image, digest: str) -> Recipe:
    like = recipe_for(image, "causal-conv1d", SOURCES.matrix)
    made = replace(like, package="tiny", distribution="tiny", version="1.0", sdist=digest)
    return replace(made, environment={}, cpu="x86-64-v3")


def wheel_options(folder: Path) -> WheelOptions:
    return WheelOptions(
        out=folder / "out",
        facts=SOURCES.facts,
        locks=SOURCES.workspace.locks,
        cache=folder / "compiled",
        sdists=folder / "sdists",
    )


def build_wheel(
    engine: Engine,
    image: Image,
    files: Mapping[str, str],
    folder: Path,
    progress: Progress | None = None,
) -> None:
    recipe = tiny(image, sdist(files, folder / "sdists"))
    with progress or Progress(Console(stderr=True)) as shown:
        builder.build_wheel(engine, image, recipe, wheel_options(folder), host_settings(), shown)


class Watching(Progress):
    """Calls `act` when the first object is finished."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(Console(stderr=True))
        self._act = act

    def say(self, name: str, text: str, style: str = "") -> None:
        super().say(name, text, style)
        if text.startswith("object 2 "):
            threading.Thread(target=self._act).start()


def test_a_build_that_may_compile_does_so_once_for_one_arch_alone_and_is_resumed_where_it_was(
    engine: Engine, image: Image, tmp_path: Path
) -> None:
    slow = sources("one", "two", "three")
    # This file takes some seconds longer than the others, so that the interruption comes before the
    # wheel is ready.
    for i in range(2):
        slow["three.cu"] += (
            f"template <int N> __global__ void k{i}(float* x) {{\n"
            "#pragma unroll\n"
            f"for (int j = 0; j < N; ++j) x[j] = x[j + {i}] * x[threadIdx.x + j]; }}\n"
            f"template __global__ void k{i}<2000>(float*);\n"
        )
    row = SourceRow(releases={"1.0": sdist(slow, tmp_path / "sdists")}, cpu="x86-64-v3")
    known = SOURCES.matrix.model_copy(update={"sources": {"tiny": row}})
    pin = Pin(name="tiny", version="1.0", layer="kernels", compiled=True)
    wanted = replace(image, pins=(*(one for one in image.pins if one.name != "flash-attn"), pin))
    options, recipe = wheel_options(tmp_path), recipe_for(wanted, "tiny", known)

    def gather(compiled: Callable[[Image, Pin], Path | None]) -> prebuilt.Gathered:
        return prebuilt.gather(
            wanted,
            wheelhouse=None,
            official=partial(prebuilt.obtain, cache=tmp_path),
            compiled=compiled,
        )

    with pytest.raises(UserError, match="not compiled for this image yet"):
        gather(wheel_finder(known, options.cache))
    with (
        open_engine(None, on_progress=print) as own,
        Watching(own.cancel) as watched,
        pytest.raises(Cancelled),
    ):
        gather(builder.wheel_builder(own, known, options, host_settings(), watched))
    with Progress(Console(stderr=True)) as progress:
        made = gather(builder.wheel_builder(engine, known, options, host_settings(), progress))
        (wheel,) = made.files.values()
        record = json.loads((wheel.parent / "record.json").read_text())
        assert gather(wheel_finder(known, options.cache)) == made
        written = wheel.stat().st_mtime_ns
        assert (
            builder.build_wheel(engine, wanted, recipe, options, host_settings(), progress) == wheel
        )
        assert wheel.stat().st_mtime_ns == written, "what the cache has is not compiled again"
    assert record["objects"]["from_cache"] >= 2
    assert record["objects"]["compiled"] == 4 - record["objects"]["from_cache"]
    assert (record["shim"]["kept"], len(record["shim"]["dropped"]), record["shim"]["added"]) == (
        [ASKED],
        3,
        [],
    )
    assert {(one["check"], one["verdict"]) for one in record["verdict"]} >= {
        ("symbols", "PASS"),
        ("device-code", "PASS"),
    }
    assert "gcc" in record["compilers"]["g++"].lower() or "g++" in record["compilers"]["g++"]
    assert "cuda_13.0" in record["compilers"]["nvcc"]
    assert engine.find(f"truetag-wheel:{recipe.key}") is None


def test_a_compilers_error_names_package_file_line_and_log(
    engine: Engine, image: Image, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        build_wheel(
            engine, image, sources(**{"two.cu": "int one;\nint two = nothing;\n"}), tmp_path
        )
    (problem,) = caught.value.problems
    assert problem.where == "tiny 1.0"
    assert 'two.cu(2): error: identifier "nothing" is undefined' in problem.cause
    log = problem.then.partition("the log is ")[2]
    assert "nothing" in Path(log).read_text()


def test_a_wheel_without_its_arch_is_not_kept(engine: Engine, image: Image, tmp_path: Path) -> None:
    around = 'import os\nos.environ["PYTORCH_NVCC"] = os.environ["TRUETAG_NVCC"]\n' + SETUP.replace(
        "(75, 80, 90, 120)", "(80,)"
    )
    with pytest.raises(UserError, match=r"device-code/\S+ is FAIL.*sm_90"):
        build_wheel(engine, image, sources("one", **{"setup.py": around}), tmp_path)
    assert not (tmp_path / "compiled").exists()
