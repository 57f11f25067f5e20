"""A copy of the project with an image of its own in the matrix: what is measured there touches nobody's images."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from images.bench import running, synthetic
from images.bench.running import Usage
from images.config import matrix, paths
from images.config.matrix import Sources
from images.context.render import Context
from images.engine import Engine
from images.errors import Problem, UserError
from images.locking import lock_file
from images.locking.inputs import lock_inputs
from images.locking.lock_file import Lock
from images.locking.uv import Package
from images.planning import plan
from images.planning.image import Image

PROFILE = "bench"
_SMALL = 1 << 20


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
        shutil.copyfile(paths.workspace().matrix, self.root / paths.MATRIX_NAME)

    def run(self, *arguments: str, output: IO[bytes] | None = None) -> Usage:
        """`python -m images ...` in the copy. Raises UserError when it fails.

        Python keeps the bytecode of the copy, as it does for users, whatever this process was told of its own.
        """
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["DOCKER_HOST"] = self.engine.facts.url
        command = [sys.executable, "-m", "images", *arguments]
        return running.run(command, cwd=self.root, env=environment, output=output)

    def build(self, image: Image, *options: str) -> Usage:
        """Build it by the command line. An image that loses its name to the new one is taken away."""
        earlier = self.engine.find(str(image.name))
        try:
            return self.run("build", str(image.name), "--out", str(self.out), *options)
        finally:
            if earlier and (left := self.engine.find(earlier.id)) and not left.tags:
                self.engine.remove(earlier.id)

    def forget(self, image: Image) -> None:
        """Take its names away: with them it goes."""
        for name in (str(image.name), f"{image.name}-candidate"):
            self.engine.untag(name)

    def rendered(self, image: Image, base: str) -> Context:
        """The context of an image, without building it."""
        self.run("render", str(image.name), "--out", str(self.out), "--base", base)
        return written_context(self.out / str(image.name) / "context")

    def with_nvidia_pruned(self) -> ProjectCopy:
        """From here on, arch images have NVIDIA's own libraries pruned, too."""
        self.change({"prune": {"nvidia": True}})
        return self

    def add_own_layer(self, run_id: str) -> None:
        """From here on, images stand on a system layer that no engine holds: it has the run ID in a file.

        An engine forgets on the disk what it builds twice (`on_own_layer`); the command line can't add a layer.
        """
        with (self.root / "templates" / "scripts" / "user.sh").open("a", encoding="utf-8") as script:
            script.write(f"echo {run_id} >/var/log/truetag-bench\n")

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
        (self.root / "matrix.yaml").write_text(synthetic.written(_merged(data, edit)), encoding="utf-8")

    def lock(self, image: Image, like: Lock, moved: Mapping[str, Package]) -> None:
        """Lock an image as `like`, with other versions of some packages. No index is asked.

        A line that no other lock has makes the files new to any build cache.
        """
        wanted = lock_inputs(image)
        layers = {
            layer: tuple(moved.get(package.name, package) for package in like.layers.get(layer, ()))
            for layer in (*wanted.layers, *wanted.alone)
        }
        files = {f"{layer}.txt": _file(like, layer, packages, moved) for layer, packages in layers.items()}
        made = Lock(inputs=wanted, files=files, layers=layers)
        locks = {f"{image.lock_name}/{path}": text for path, text in lock_file.written(made).items()}
        lock_file.write(locks, self.root / "locks")


def written_context(folder: Path) -> Context:
    """A context that a build left on disk, as it was sent."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.stat().st_size <= _SMALL else path
        for path in files
    }


def _file(like: Lock, layer: str, packages: Sequence[Package], moved: Mapping[str, Package]) -> bytes:
    if any(package.name in moved for package in packages):
        return lock_file.print_requirements(packages) + f"# {uuid.uuid4().hex}\n".encode()
    return like.files.get(f"{layer}.txt") or lock_file.print_requirements(packages)


def _merged(data: Mapping[str, Any], edit: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **data,
        **{
            key: _merged(data.get(key, {}), value) if isinstance(value, Mapping) else value
            for key, value in edit.items()
        },
    }


@contextmanager
def project_copy(engine: Engine, subject: str) -> Iterator[tuple[ProjectCopy, Image]]:
    """A copy with the image `SUBJECT-bench`, which holds what `SUBJECT` holds; all of it gone at the end.

    It lies where the engine keeps its data, if that is this machine: the lower bound is then measured on the same disk.
    """
    root = _home(engine) / f"truetag-bench-{uuid.uuid4().hex[:8]}"
    project = ProjectCopy(root, engine, root / "out")
    try:
        project.copy()
        shutil.copytree(paths.RESOURCES / "locks", root / "locks")
        parent = project.image(subject)
        name = str(replace(parent.name, profile=PROFILE))
        torch = str(parent.name.torch)
        project.change({"profiles": {PROFILE: {"page": "bench", "stacks": {torch: {}}}}})
        project.change({"images": [*_rows(project), {"name": name}]})
        image = project.image(name)
        project.lock(image, lock_file.read(parent), {})
        yield project, image
    finally:
        for name in (f"{subject}-{PROFILE}", f"{subject}-{PROFILE}-candidate"):
            engine.untag(name)
        shutil.rmtree(root, ignore_errors=True)


def _rows(project: ProjectCopy) -> list[dict[str, Any]]:
    return [row.model_dump(mode="json", exclude_defaults=True) for row in project.sources().matrix.images]


def _home(engine: Engine) -> Path:
    folder = Path(engine.facts.data_root).parent if engine.facts.local else Path.home() / ".cache"
    if not os.access(folder, os.W_OK):
        then = "run the benchmark as a user who may write there"
        raise UserError(
            Problem(where=str(folder), cause="can't be written: the lower bound is measured there", then=then)
        )
    return folder
