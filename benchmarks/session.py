"""What every part has to work with: the engine, and a copy of the project with an image of its own in the matrix.

What is measured in the copy touches nobody's images.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import yaml

from benchmarks import running
from benchmarks.builder import Builder, open_builder
from benchmarks.running import Usage
from images.config import matrix, paths
from images.config.matrix import Sources
from images.context import base_images
from images.context.hosting import HostSettings, host_settings
from images.context.render import Context, content_of
from images.context.templates import environment
from images.engine import Engine, private_engine
from images.engine.buildkit import BuildResult
from images.engine.failures import step_name
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.locking import lock_file
from images.locking.inputs import Package, lock_inputs
from images.locking.lock_file import Lock
from images.planning import plan
from images.planning.image import Image

SUBJECT = "cu130-torch211"
"""The image that is compared. CUDA 13 is the first whose devel toolkit is on the index: a devel base can be made."""
PROFILE = "bench"
ARCH = "sm90"
TEMPLATES = Path(__file__).parent / "templates"
_SMALL = 1 << 20
_SHORTEST = 0.1
"""Seconds below which a step is not listed."""
_CUDA_LIBRARIES = (
    *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cufft", "curand", "cusolver", "cusparse", "nccl"),
    "nvjitlink",
)
"""Distributions of torch's closure that NVIDIA's devel images hold too; cuDNN, cuSPARSELt and NVSHMEM they lack."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of the benchmark."""

    engine: Engine
    host: HostSettings
    sources: Sources
    progress: Progress
    repeat: int
    rest: int = 0
    """Seconds to wait before each cold build."""

    def say(self, text: str) -> None:
        self.progress.say("bench", text)

    def builder(self) -> AbstractContextManager[Builder]:
        return open_builder(self.engine, self.host, self.progress.job("bench"))

    def acquired(self, image: Image) -> str:
        """The reference of an image's base, which the engine has afterwards."""
        return base_images.acquire(
            self.engine, image.base, root=paths.RESOURCES, host=self.host, on_progress=self.say
        ).reference

    @contextmanager
    def baseline(self, project: ProjectCopy, base: str) -> Iterator[Builder]:
        """The builder of the baseline image, which is in place of NVIDIA's devel image on the conventional side.

        It is made from what the caches hold, and not measured. `base`: what our image stands on.
        """
        devel = project.image(f"{SUBJECT}-devel")
        locked = lock_file.read(devel, project.root / "locks")
        with self.builder() as builder:
            builder.build(baseline_context(project.rendered(devel, base), devel, locked, base))
            builder.forget_steps()
            size = self.engine.inspect(builder.run_id).size
            self.say(f"the baseline image, in place of NVIDIA's devel base, has {size / 1e9:.2f} GB")
            yield builder


@contextmanager
def open_session(engine: str | None, *, repeat: int, rest: int = 0) -> Iterator[Session]:
    """With the engine at a URL, or the one that builds take. Raises UserError."""
    with Progress() as progress:
        docker_engine = private_engine.open_engine(engine, on_progress=lambda text: progress.say("engine", text))
        with docker_engine:
            yield Session(
                engine=docker_engine,
                host=host_settings(),
                sources=matrix.load(),
                progress=progress,
                repeat=repeat,
                rest=rest,
            )


@dataclass(frozen=True)
class ProjectCopy:
    """Where it lies, and the engine that its commands use."""

    root: Path
    engine: Engine
    out: Path

    def copy(self) -> None:
        """Bring the project here, all but its locks."""
        for folder in (paths.RESOURCES / "images", paths.SUITE, paths.TEMPLATES, paths.EXAMPLES):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder, self.root / folder.name, ignore=ignored, dirs_exist_ok=True)
        shutil.copyfile(paths.RESOURCES / paths.MATRIX_NAME, self.root / paths.MATRIX_NAME)

    def run(self, *arguments: str, output: IO[bytes] | None = None) -> Usage:
        """`python -m images ...` in the copy. Raises UserError when it fails.

        Python keeps the bytecode of the copy, as it does for users, whatever this process was told of its own.
        """
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["DOCKER_HOST"] = self.engine.facts.url
        command = [sys.executable, "-m", "images", *arguments]
        return running.run(command, cwd=self.root, env=environment, output=output)

    def build(self, image: Image) -> Usage:
        """Build it by the command line. An image that loses its name to the new one is taken away."""
        earlier = self.engine.find(str(image.name))
        try:
            return self.run("build", str(image.name), "--out", str(self.out))
        finally:
            if earlier and (left := self.engine.find(earlier.id)) and not left.tags:
                self.engine.remove(earlier.id)

    def rendered(self, image: Image, base: str) -> Context:
        """The context of an image, without building it."""
        self.run("render", str(image.name), "--out", str(self.out), "--base", base)
        folder = self.out / str(image.name) / "context"
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {
            path.relative_to(folder).as_posix(): path.read_bytes() if path.stat().st_size <= _SMALL else path
            for path in files
        }

    def sources(self) -> Sources:
        return matrix.load(self.root / "matrix.yaml", self.root / "images" / "data" / "facts.yaml")

    def image(self, name: str) -> Image:
        (planned,) = plan.select([name], self.sources())
        if planned.image is None:
            raise UserError(Problem(where=name, cause="; ".join(planned.reasons), then="measure another image"))
        return planned.image

    def change(self, edit: Mapping[str, Any]) -> None:
        """Replace parts of the copy's matrix: `{"stacks": {"2.11": {"liger-kernel": "0.8.1"}}}` moves one pin."""
        data = self.sources().matrix.model_dump(mode="json", exclude_defaults=True)
        (self.root / "matrix.yaml").write_text(written(_merged(data, edit)), encoding="utf-8")

    def lock(self, image: Image, like: Lock, moved: Mapping[str, Package]) -> None:
        """Lock an image as `like`, with other versions of some packages. No index is asked.

        A line that no other lock has makes the files new to any build cache.
        """
        wanted = lock_inputs(image)
        layers = {
            layer: tuple(moved.get(package.name, package) for package in like.layers.get(layer, ()))
            for layer in (*wanted.layers, *wanted.alone)
        }
        files: dict[str, bytes] = {}
        for layer, packages in layers.items():
            printed = lock_file.print_requirements(packages)
            new = any(package.name in moved for package in packages)
            files[f"{layer}.txt"] = (
                printed + f"# {uuid.uuid4().hex}\n".encode() if new else like.files.get(f"{layer}.txt") or printed
            )
        made = lock_file.written(Lock(inputs=wanted, files=files, layers=layers))
        lock_file.write({f"{image.lock_name}/{path}": text for path, text in made.items()}, self.root / "locks")


def written(data: Mapping[str, Any]) -> str:
    """matrix.yaml as people write it: a row an image."""
    rows = "".join(f"  - {json.dumps(row)}\n" for row in data["images"])
    others = {key: value for key, value in data.items() if key != "images"}
    return yaml.safe_dump(others, width=120, sort_keys=False) + f"images:\n{rows}"


def _merged(data: Mapping[str, Any], edit: Mapping[str, Any]) -> dict[str, Any]:
    changed = {
        key: _merged(data.get(key, {}), value) if isinstance(value, Mapping) else value for key, value in edit.items()
    }
    return {**data, **changed}


@contextmanager
def project_copy(engine: Engine, subject: str = SUBJECT) -> Iterator[tuple[ProjectCopy, Image]]:
    """A copy with the image `SUBJECT-bench`, which holds what `SUBJECT` holds; all of it gone at the end.

    It lies where the engine keeps its data, if that is this machine: the lower bound is then measured on the same disk.
    """
    home = Path(engine.facts.data_root).parent if engine.facts.local else Path.home() / ".cache"
    if not os.access(home, os.W_OK):
        cause, then = "can't be written: the lower bound is measured there", "measure as a user who may write there"
        raise UserError(Problem(where=str(home), cause=cause, then=then))
    root = home / f"truetag-bench-{uuid.uuid4().hex[:8]}"
    project = ProjectCopy(root, engine, root / "out")
    try:
        project.copy()
        shutil.copytree(paths.RESOURCES / "locks", root / "locks")
        parent = project.image(subject)
        name = str(replace(parent.name, profile=PROFILE))
        rows = [row.model_dump(mode="json", exclude_defaults=True) for row in project.sources().matrix.images]
        profile = {"page": "bench", "stacks": {str(parent.name.torch): {}}}
        project.change({"profiles": {PROFILE: profile}, "images": [*rows, {"name": name}]})
        image = project.image(name)
        project.lock(image, lock_file.read(parent, paths.RESOURCES / "locks"), {})
        yield project, image
    finally:
        for name in (f"{subject}-{PROFILE}", f"{subject}-{PROFILE}-candidate"):
            engine.untag(name)
        shutil.rmtree(root, ignore_errors=True)


def baseline_context(devel: Context, image: Image, locked: Lock, base: str) -> Context:
    """The baseline image, in place of NVIDIA's devel image: a -devel context, ended with toolkit and libraries."""
    names = {f"nvidia-{name}{suffix}" for name in _CUDA_LIBRARIES for suffix in ("", "-cu12", "-cu13")}
    cuda = [package for layer in image.layers for package in locked.layers[layer] if package.name in names]
    template = environment(TEMPLATES).get_template("baseline.j2")
    end = template.render(base=base, home=image.toolkit_home, python="/opt/venv/bin/python")
    dockerfile = content_of(devel["Dockerfile"]) + end.encode()
    return {**devel, "locks/cuda.txt": lock_file.print_requirements(cuda), "Dockerfile": dockerfile}


def conventional_context(image: Image, locked: Lock, base: str, host: Mapping[str, bytes]) -> Context:
    """The image's packages in one requirements file, on a devel base."""
    packages = [package for layer in image.layers for package in locked.layers[layer]]
    pip = next(package.version for package in packages if package.name == "pip")
    lines = [f"{package.name}=={package.version}" for package in packages]
    return {
        **host,
        "requirements.txt": "\n".join([*lines, ""]).encode(),
        "Dockerfile": environment(TEMPLATES).get_template("conventional.j2").render(base=base, pip=pip).encode(),
    }


def step_times(result: BuildResult) -> list[dict[str, Any]]:
    """The steps that took a while."""
    return [
        {"name": step_name(step.name, 120), "seconds": round(step.seconds, 2), "cached": step.cached}
        for step in result.steps
        if step.seconds >= _SHORTEST
    ]


def retry_command(part: str) -> str:
    return f"`python -m benchmarks --only {part}`"
