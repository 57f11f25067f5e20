"""The sides of a comparison: our image, the same packages the conventional way, and the floor below both.

All hold the same versions from the same index. Each cold run starts without build cache and without wheels, and leaves
nothing: what the engine keeps of it is found by a word that stands in every step.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from uv import find_uv_bin

from images.bench import running
from images.building import uncached
from images.context.hosting import HostSettings
from images.context.render import Context, content_of
from images.context.templates import environment
from images.engine import BuildSpec, CacheRecord, Engine
from images.engine.buildkit import BuildEvent, BuildResult
from images.locking import lock_file, uv
from images.locking.inputs import lock_inputs
from images.locking.lock_file import Lock
from images.planning.image import Image

_STEP = re.compile(r"^(?P<indent> +(?:&& )?)(?P<command>sh /run/scripts/|\. /run/host/env)", re.MULTILINE)
_CUDA = re.compile(
    r"nvidia-(?:cublas|cuda-cupti|cuda-nvrtc|cuda-runtime|cufft|curand|cusolver|cusparse|nccl|nvjitlink)(?:-cu1[0-9])?"
)
"""Distributions of torch's closure that NVIDIA's devel images hold too; cuDNN, cuSPARSELt and NVSHMEM they lack."""


@dataclass(frozen=True)
class Kitchen:
    """Where the sides are made: one engine, the host's settings, a word for the traces.

    `before`: records of the build cache that were there before it.
    """

    engine: Engine
    host: HostSettings
    word: str
    on_event: Callable[[BuildEvent], None]
    before: frozenset[str] = frozenset()

    def build(
        self,
        context: Mapping[str, bytes | Path],
        tag: str,
        *,
        cold: bool = False,
        anew: bool = False,
        marked: bool = True,
        target: str = "",
    ) -> BuildResult:
        """Build a context. `marked`: steps bear the word.

        `anew`: no step comes from the cache, wheels may. `cold`: those neither. Both stand on a layer of their own, as
        an engine forgets on the disk what it builds twice.
        """
        files = marked_with(context, self.word) if marked else context
        files = uncached.with_own_wheels(files, self.word) if cold else files
        files = uncached.apart(files, self.word) if cold or anew else files
        spec = BuildSpec(no_cache=cold or anew, target=target or None, attempts=1)
        return self.engine.build(files, tag or None, spec, on_event=self.on_event)

    def nothing_new_kept(self) -> AbstractContextManager[None]:
        """The kitchen's image, and what its marked steps add to the build cache inside, are gone after it."""
        return uncached.nothing_new_kept(self.engine, self.word, lambda records: traces(records, self.word))

    def nothing_at_all_kept(self) -> AbstractContextManager[None]:
        """The same of unmarked steps, which may come from the build cache.

        No record says who made it: builds of others on the same engine meanwhile leave nothing in the cache, either.
        """
        return uncached.nothing_new_kept(self.engine, self.word)


@contextmanager
def kitchen(engine: Engine, host: HostSettings, on_event: Callable[[BuildEvent], None]) -> Iterator[Kitchen]:
    """A place that leaves nothing in the engine: neither images named after its word, nor the cache of its steps."""
    before = frozenset(record.id for record in engine.build_cache())
    it = Kitchen(engine, host, f"truetag-bench-{uuid.uuid4().hex[:12]}", on_event, before)
    try:
        yield it
    finally:
        clear(it)


def clear(it: Kitchen) -> None:
    """Take away images and build cache of the kitchen, so that the next run is as cold as the first."""
    it.engine.untag(it.word)
    forget_steps(it)


def forget_steps(it: Kitchen) -> None:
    """Take away the build cache alone: an image that was made keeps its layers."""
    uncached.forget(it.engine, lambda records: traces(records, it.word))
    uncached.forget(it.engine, lambda records: left_ground(records, it.before))


def traces(records: Sequence[CacheRecord], word: str) -> list[CacheRecord]:
    """The records of steps that bear a word, and all that stand on them. Pure."""
    found = {record.id: record for record in records if word in record.made_by}
    while above := [one for one in records if one.id not in found and found.keys() & set(one.parents)]:
        found.update((record.id, record) for record in above)
    return list(found.values())


def left_ground(records: Sequence[CacheRecord], before: frozenset[str]) -> list[CacheRecord]:
    """New records of images that steps stood on, and none stands on now: they hold the bytes of an image that is gone.

    Whoever builds on such an image again has the record again, at no cost. Pure.
    """
    stood_on = {parent for record in records for parent in record.parents}
    free = (record for record in records if record.id not in before | stood_on)
    return [record for record in free if record.made_by.startswith("from local")]


def marked_with(context: Mapping[str, bytes | Path], word: str) -> Context:
    """The context with a word in each step."""
    text = content_of(context["Dockerfile"]).decode()
    return {**context, "Dockerfile": _STEP.sub(rf"\g<indent>: {word} && \g<command>", text).encode()}


def standin_context(devel: Context, image: Image, locked: Lock, base: str) -> Context:
    """What stands in for NVIDIA's devel image: a -devel image's context, ended with toolkit and libraries."""
    cuda = [package for layer in image.layers for package in locked.layers[layer] if _CUDA.fullmatch(package.name)]
    text = content_of(devel["Dockerfile"]).decode()
    end = _template("bench/standin.j2", base=base, home=image.toolkit_home, python="/opt/venv/bin/python")
    return {**devel, "locks/cuda.txt": lock_file.print_requirements(cuda), "Dockerfile": (text + end).encode()}


def conventional_context(image: Image, locked: Lock, base: str, host: Mapping[str, bytes]) -> Context:
    """The image's packages in one requirements file, on a devel base."""
    packages = [package for layer in image.layers for package in locked.layers[layer]]
    pip = next(package.version for package in packages if package.name == "pip")
    lines = [f"{package.name}=={package.version}" for package in packages]
    return {
        **host,
        "requirements.txt": "\n".join([*lines, ""]).encode(),
        "Dockerfile": _template("bench/conventional.j2", base=base, pip=pip).encode(),
    }


def floor(image: Image, locked: Lock, beside: Path, environment: Mapping[str, str]) -> float:
    """Seconds to download and unpack an image's wheels with uv, outside Docker: all at once, no bytecode, no copy.

    `beside` is a folder on the disk to measure. Nobody who ends up with these files can leave any of this out.
    """
    target = lock_inputs(image).target
    with TemporaryDirectory(dir=beside) as folder, ThreadPoolExecutor() as pool:
        place = Path(folder)
        groups = {"toolkit": ("toolkit",), "packages": image.layers}
        start = time.monotonic()
        jobs = [
            pool.submit(_unpack, place, name, [locked.files[f"{layer}.txt"] for layer in layers], target, environment)
            for name, layers in groups.items()
        ]
        for job in jobs:
            job.result()
        return time.monotonic() - start


def _unpack(place: Path, name: str, files: list[bytes], target: uv.Target, environment: Mapping[str, str]) -> None:
    requirements = place / f"{name}.txt"
    requirements.write_bytes(b"".join(files))
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--link-mode", "hardlink"]
    command += ["--python-version", target.python, "--python-platform", target.platform, "--only-binary", ":all:"]
    command += ["--target", str(place / name), "--cache-dir", str(place / f"cache-{name}"), "-r", str(requirements)]
    running.run(command, cwd=place, env=uv.environment(environment))


def _template(name: str, **values: str) -> str:
    return environment().get_template(name).render(**values)
