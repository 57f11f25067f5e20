"""Apptainer as a runtime of trials: images of a registry by digest, unpacked for as long as they are tried."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from images.apptainer import published, sandboxes
from images.apptainer.command import HOSTS, PROGRAM, environment, exec_command, not_given, pull_command
from images.apptainer.container import ApptainerContainer
from images.apptainer.published import Published
from images.config.platforms import of_machine
from images.engine import (
    PLATFORM,
    ContainerSpec,
    EngineError,
    EngineErrorKind,
    EngineFacts,
    HistoryEntry,
    ImageInfo,
    NoEngine,
    connect,
)
from images.engine.failures import Cancelled
from images.engine.runtime import Runtime
from images.errors import Problem, UserError

_NO_RANKS = "Apptainer gives the limits of the user who starts it"


def open_runtime(url: str | None) -> Runtime:
    """What runs a trial's containers: what `url` names (`apptainer`, or an engine's address), else an engine that
    answers, else Apptainer where it is installed. Raises UserError, NoEngine."""
    if url == PROGRAM:
        return Apptainer()
    try:
        return connect(url, builds=False)
    except NoEngine:
        if shutil.which(PROGRAM) and os.geteuid() != 0:
            return Apptainer()
        raise


class Apptainer:
    """Knows images by their references in a registry, a digest or a tag. Thread safe; a context manager."""

    def __init__(self) -> None:
        """Raises UserError where there is none, or for root: there it would give containers root's rights."""
        if os.geteuid() == 0:
            then = "run this as a user, or use Docker: leave --engine out"
            raise UserError(Problem(where=PROGRAM, cause="is used here without root's rights alone", then=then), code=1)
        self.facts = _facts()
        self._stack = ExitStack()
        self._fetching, self._lock = threading.Lock(), threading.Lock()
        self._cancelled = threading.Event()
        self._images: dict[str, Published] = {}
        self._sandboxes: dict[str, Path] = {}
        self._running: set[ApptainerContainer] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            running = tuple(self._running)
        for container in running:
            container.kill()

    def sweep(self) -> tuple[str, ...]:
        return sandboxes.sweep()

    def inspect(self, ref: str) -> ImageInfo:
        return self._published(ref).info

    def find(self, ref: str) -> ImageInfo | None:
        found = self._read(ref)
        return found.info if found else None

    def pull(self, ref: str, *, platform: str = PLATFORM) -> ImageInfo:
        """Nothing is fetched before the first container. `platform`: a digest names one image already."""
        return self.inspect(ref)

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        return self._published(ref).history

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[ApptainerContainer]:
        """Raises UserError, Cancelled, EngineError for what Apptainer can't give."""
        if spec.ulimits:
            then = "`ulimit` before the command, or the site's limits"
            raise EngineError(Problem(where=PROGRAM, cause=_NO_RANKS, then=then), EngineErrorKind.ULIMIT)
        if lacking := not_given(spec):
            then = "judge this with Docker: leave `--engine apptainer` out"
            raise UserError(Problem(where=PROGRAM, cause=f"can't give a container {lacking}", then=then), code=1)
        found = self._published(spec.image)
        sandbox = self._sandbox(found)
        with tempfile.TemporaryDirectory(prefix="truetag-container-", dir=sandbox.parent) as name:
            folders = _folders(spec, Path(name))
            variables = environment(spec, found.info, _passwd(sandbox))
            command = exec_command(spec, found.info.workdir, sandbox, folders, variables)
            container = ApptainerContainer(spec.name or found.reference, command, folders)
            with self._active(container):
                yield container

    @contextmanager
    def _active(self, container: ApptainerContainer) -> Iterator[None]:
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled
            self._running.add(container)
        try:
            yield
            if self._cancelled.is_set():
                raise Cancelled
        except Exception as error:
            if self._cancelled.is_set() and not isinstance(error, Cancelled):
                raise Cancelled from error
            raise
        finally:
            container.kill()
            with self._lock:
                self._running.discard(container)

    def _published(self, ref: str) -> Published:
        if found := self._read(ref):
            return found
        cause = "no registry has such an image, and Apptainer keeps none"
        problem = Problem(
            where=ref, cause=cause, then="name one with its registry: HOST/NAME@sha256:... or HOST/NAME:TAG"
        )
        raise EngineError(problem, EngineErrorKind.NO_SUCH_IMAGE, code=2)

    def _read(self, ref: str) -> Published | None:
        with self._fetching:
            if ref not in self._images and "/" in ref and (found := published.read(ref)):
                self._images |= {ref: found, found.info.id: found}
            return self._images.get(ref)

    def _sandbox(self, found: Published) -> Path:
        with self._fetching:
            if found.reference not in self._sandboxes:
                target = self._stack.enter_context(sandboxes.folder()) / "root"
                self._unpack(found, target)
                self._sandboxes[found.reference] = target
            return self._sandboxes[found.reference]

    def _unpack(self, found: Published, target: Path) -> None:
        command = pull_command(found.reference, target, plain_http=found.plain_http)
        process = ApptainerContainer(found.reference, command, {})
        with self._active(process):
            process.start()
            said = " ".join(line.text for line in process.lines())
            code = process.wait().code
        if code:
            then = f"`{' '.join(command)}` says more; it needs room for the whole image in {sandboxes.home()}"
            cause = f"can't be unpacked (status {code}): {said[-600:]}"
            raise UserError(Problem(where=found.reference, cause=cause, then=then), code=1)


def _folders(spec: ContainerSpec, home: Path) -> dict[str, Path]:
    """A folder for each path that the container may write, or that is filled for it."""
    found = {}
    for number, path in enumerate([*spec.volumes, *spec.copied_volumes, *spec.tmpfs]):
        found[path] = home / str(number)
        found[path].mkdir()
    hosts = home / "hosts"
    hosts.write_text(HOSTS)
    return {**found, "/etc/hosts": hosts}


def _passwd(sandbox: Path) -> str:
    """The image's /etc/passwd, where it is a file of the image: its links lead to this machine's files."""
    path = sandbox / "etc" / "passwd"
    try:
        inside = path.is_file() and path.resolve().is_relative_to(sandbox.resolve())
        return path.read_text(errors="replace") if inside else ""
    except OSError:
        return ""


def _facts() -> EngineFacts:
    """Raises UserError where there is no Apptainer."""
    try:
        said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        then = "install it (Debian sid, Fedora, EPEL: `apptainer`), or name an engine with --engine URL"
        raise UserError(Problem(where=PROGRAM, cause=f"can't be run: {error}", then=then), code=1) from None
    machine = of_machine(platform.machine())
    return EngineFacts(
        url=PROGRAM,
        version=f"{PROGRAM} {said.split()[-1]}",
        api="0",
        data_root=str(sandboxes.home()),
        local=True,
        cgroup="",
        cpus=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        storage="folder",
        runtimes=(),
        architecture=machine.architecture if machine else platform.machine(),
        apptainer=True,
    )
