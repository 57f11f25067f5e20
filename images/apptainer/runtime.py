"""Apptainer as a runtime of validation runs: images of a registry, unpacked for as long as containers of them run."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from images.config.platforms import of_machine
from images.engine import ContainerSpec, EngineError, EngineErrorKind, Exit, HistoryEntry, ImageInfo, TimedOut
from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import plain_line
from images.engine.containers import HOST_NAME, TooMuchOutput
from images.engine.runtime import PLATFORM, EngineFacts, Line, Work, image_info
from images.errors import Problem, UserError
from images.registry.client import Registry
from images.registry.reference import Reference, is_loopback

PROGRAM = "apptainer"
_PREFIX, _LOCK = "truetag-apptainer-", "lock"
_GUARD = """
exec 3<&0
read -r first <&3
printf '%s\\n' "$first" | "$@" 3<&- &
child=$!
{ read -r _ <&3; kill -9 $child; } >/dev/null 2>&1 &
exec 3<&- 2>/dev/null
wait $child
status=$?
kill -9 $!
exit $status
"""
"""Gives a command the first line of its own standard input, and runs it until that ends, as it does when whoever holds
the other end is killed. The kernel's signal for that (`setpriv --pdeathsig`) is lost where Apptainer makes its user
namespace."""


class Apptainer:
    """Knows images by their references in a registry, a digest or a tag. Thread safe; a context manager."""

    def __init__(self) -> None:
        """Raises UserError where there is none, or for root: there it would give containers root's rights."""
        if os.geteuid() == 0:
            then = "run this as a user, or use Docker: leave --engine out"
            raise UserError(Problem(where=PROGRAM, cause="is used here without root's rights alone", then=then), code=1)
        try:
            said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            then = "install it (Debian sid, Fedora, EPEL: `apptainer`), or name an engine with --engine URL"
            raise UserError(Problem(where=PROGRAM, cause=f"can't be run: {error}", then=then), code=1) from None
        machine = of_machine(platform.machine())
        self.facts = EngineFacts(
            url=PROGRAM,
            version=f"{PROGRAM} {said.split()[-1]}",
            api="0",
            data_root=str(scratch_home()),
            local=True,
            cpus=len(os.sched_getaffinity(0)),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            runtimes=(),
            architecture=machine.architecture if machine else platform.machine(),
            apptainer=True,
        )
        self._stack = ExitStack()
        self._fetching = threading.Lock()
        self._work = Work()
        self._images: dict[str, Published] = {}
        self._sandboxes: dict[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cancel(self) -> None:
        self._work.cancel()

    def sweep(self) -> tuple[str, ...]:
        return sweep()

    def inspect(self, ref: str) -> ImageInfo:
        return self._published(ref).info

    def find(self, ref: str) -> ImageInfo | None:
        with self._fetching:
            if ref not in self._images and "/" in ref and (found := read_published(ref)):
                self._images |= {ref: found, found.info.id: found}
            return self._images[ref].info if ref in self._images else None

    def pull(self, ref: str, *, platform: str = PLATFORM) -> ImageInfo:
        """Nothing is fetched before the first container. `platform`: a digest names one image already."""
        return self.inspect(ref)

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        return self._published(ref).history

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[ApptainerContainer]:
        """Raises UserError, Cancelled, EngineError for what Apptainer can't give."""
        if spec.ulimits:
            cause, then = "Apptainer gives the limits of the user who starts it", "`ulimit` before the command"
            raise EngineError(Problem(where=PROGRAM, cause=cause, then=then), EngineErrorKind.ULIMIT)
        if lacking := unsupported(spec):
            then = "judge this with Docker: leave `--engine apptainer` out"
            raise UserError(Problem(where=PROGRAM, cause=f"can't give a container {lacking}", then=then), code=1)
        found = self._published(spec.image)
        sandbox = self._sandbox(found)
        with tempfile.TemporaryDirectory(prefix="truetag-container-", dir=sandbox.parent) as name:
            # A folder for each path that the container may write, or that is filled for it.
            folders = {}
            for number, path in enumerate([*spec.volumes, *spec.tmpfs]):
                folders[path] = Path(name, str(number))
                folders[path].mkdir()
            folders["/etc/hosts"] = Path(name, "hosts")
            folders["/etc/hosts"].write_text(HOSTS)
            command = exec_command(spec, found.info, sandbox, folders)
            container = ApptainerContainer(spec.name or found.reference, command, folders)
            with self._work.going_on(container.kill, always=True):
                yield container

    def _published(self, ref: str) -> Published:
        if self.find(ref) is None:
            cause = "no registry has such an image, and Apptainer keeps none"
            then = "name one with its registry: HOST/NAME@sha256:... or HOST/NAME:TAG"
            problem = Problem(where=ref, cause=cause, then=then)
            raise EngineError(problem, EngineErrorKind.NO_SUCH_IMAGE, code=2)
        return self._images[ref]

    def _sandbox(self, found: Published) -> Path:
        """The unpacked image. Apptainer holds each layer to the digests of the manifest."""
        with self._fetching:
            if found.reference not in self._sandboxes:
                target = self._stack.enter_context(scratch_folder()) / "root"
                # What a killed one leaves lies beside it, and is swept with the folder.
                command = ["env", f"APPTAINER_TMPDIR={target.parent}", PROGRAM, "--silent", "build", "--sandbox"]
                command += ["--no-https"] if found.plain_http else []
                command += [str(target), f"docker://{found.reference}"]
                process = ApptainerContainer(found.reference, command, {})
                with self._work.going_on(process.kill, always=True):
                    process.start()
                    said = " ".join(line.text for line in process.lines())
                    code = process.wait().code
                if code:
                    then = f"`{' '.join(command)}` says more; it needs room for the whole image in {scratch_home()}"
                    cause = f"can't be unpacked (status {code}): {said[-600:]}"
                    raise UserError(Problem(where=found.reference, cause=cause, then=then), code=1)
                self._sandboxes[found.reference] = target
            return self._sandboxes[found.reference]


class ApptainerContainer:
    """One container as a process of `apptainer exec`: killing that ends all that runs in it."""

    def __init__(self, name: str, command: list[str], folders: dict[str, Path]) -> None:
        """`folders`: path in the container -> folder of this machine."""
        self._name, self._folders = name, folders
        self._command = ["sh", "-c", _GUARD, "guard", *command]
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._ended = threading.Event()

    def put(self, files: Files, to: str) -> None:
        """Copy files into the folder `to`, one of the spec's volumes, before the start. Raises UserError."""
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", ChunkReader(pack(files))), mode="r|") as archive:
                archive.extractall(self._folders[to], filter="data")
        except OSError as error:
            then = "has the disk of TMPDIR room?"
            raise UserError(Problem(where=self._name, cause=f"can't be prepared: {error}", then=then), code=1) from None

    def start(self, stdin: bytes = b"") -> None:
        """Start it with a line of standard input."""
        if self._ended.is_set():
            return
        pipe = subprocess.PIPE
        variables = host_variables(os.environ)
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=variables)
        if self._process.stdin:
            self._process.stdin.write(stdin or b"\n")
            self._process.stdin.flush()
        for one in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
            threading.Thread(target=self._read, args=one, daemon=True).start()

    def lines(self, timeout: float | None = None, *, most: int | None = None) -> Iterator[Line]:
        """What it prints, line by line, until it ends.

        Kills it and raises TimedOut after `timeout` seconds, TooMuchOutput after `most` characters.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        streams, printed = 2 if self._process else 0, 0
        while streams:
            try:
                line = self._printed.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise TimedOut(self._name, timeout or 0) from None
            if line is None:
                streams -= 1
                continue
            printed += len(line.text)
            if most is not None and printed > most:
                self.kill()
                raise TooMuchOutput(self._name, most)
            yield line

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait for its end. Kills it and raises TimedOut after `timeout` seconds. A kill has the status of a shell."""
        if self._process is None:
            return Exit(code=128 + signal.SIGKILL, oom=False, error="it was cancelled before its start")
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimedOut(self._name, timeout or 0) from None
        return Exit(code=code if code >= 0 else 128 - code, oom=False, error="")

    def kill(self) -> None:
        """End it at once. One that has ended is no error."""
        self._ended.set()
        if self._process is not None and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()

    def _read(self, stream: str, source: IO[bytes]) -> None:
        with source:
            for line in source:
                self._printed.put(Line(stream=stream, text=plain_line(line.rstrip(b"\n"))))
        self._printed.put(None)


# ---- what a registry says of an image, as an engine would: Apptainer keeps no configuration of what it unpacks


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image of a registry. `reference` is `HOST/NAME@sha256:...`, of its manifest."""

    reference: str
    info: ImageInfo
    history: tuple[HistoryEntry, ...]
    plain_http: bool
    """The registry is on this machine, and speaks no TLS."""


def read_published(reference: str) -> Published | None:
    """The image under a reference; None: there is none. Raises UserError, also for an index of several platforms."""
    named = Reference.parse(reference)
    with Registry(named.repository) as registry:
        manifest = registry.find(named.identifier)
        if manifest is None:
            return None
        if manifest.is_index:
            then = "name the image of one platform: HOST/NAME@sha256:..."
            raise UserError(Problem(where=reference, cause="is an index of images", then=then), code=1)
        config = json.loads(registry.blob(manifest.config))
        plain_http = is_loopback(named.repository.host) and registry.scheme == "http"
    return published(f"{named.repository}@{manifest.digest}", manifest.config.digest, config, plain_http=plain_http)


def published(reference: str, config_digest: str, config: Any, *, plain_http: bool = False) -> Published:
    """An image by its configuration (OCI image specification). Its unpacked size is in no registry: 0. Pure."""
    layers = {"Layers": (config.get("rootfs") or {}).get("diff_ids")}
    shared = {name: config.get(name.lower()) for name in ("Created", "Architecture", "Config")}
    info = image_info({"Id": config_digest, "RepoDigests": [reference], "Size": 0, "RootFS": layers, **shared})
    steps = [str(one.get("created_by", "")) for one in config.get("history") or ()]
    history = tuple(HistoryEntry(created_by=step, size=0) for step in reversed(steps))
    return Published(reference=reference, info=info, history=history, plain_http=plain_http)


# ---- unpacked images: a folder each, gone with the process that made it, or at the next sweep if that was killed


def scratch_home() -> Path:
    """Where they lie: Apptainer's own folder for that, else the machine's. An image takes its unpacked size."""
    return Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, locked for as long as it is used. What can't be removed is left for the next sweep."""
    new = Path(tempfile.mkdtemp(prefix="truetag-new-", dir=scratch_home()))
    path = new.with_name(new.name.replace("truetag-new-", _PREFIX))
    with (new / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(path)  # a sweep sees it locked, or not at all
        try:
            yield path
        finally:
            with suppress(OSError):  # a verdict is not lost for it
                remove(path)


def sweep() -> tuple[str, ...]:
    """Remove this user's folders whose process has ended. Returns their names. What can't be removed is left."""
    gone = []
    for path in sorted(scratch_home().glob(f"{_PREFIX}*")):
        with suppress(OSError):  # in use, or another job has just removed it
            if path.is_dir() and path.lstat().st_uid == os.geteuid() and not path.is_symlink():
                with (path / _LOCK).open("a") as lock:  # a process that was killed while it removed took the lock along
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(path)
                gone.append(path.name)
    return tuple(gone)


def remove(path: Path) -> None:
    """With all it holds. Raises OSError.

    Images have folders that their owner can't read or write: each is opened before it is looked into, folders alone,
    as an image's links lead to files of this machine.
    """
    path.chmod(0o700)
    for folder, names, _ in os.walk(path):
        for inner in (Path(folder, name) for name in names):
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(path)


# ---- the command line of one container: `apptainer exec` gives more of the host than Docker (the user's home, /tmp,
# variables, files of /etc, what the site's variables and apptainer.conf name). Each option takes one of them away.
# Source: Apptainer's user guide 1.4, "Bind Paths and Mounts", "Environment and Metadata", "Security Options", "Network
# virtualization"; for the hidden `--no-nv` and `--no-rocm` its source, cmd/internal/cli/action_flags.go.

HOSTS = f"127.0.0.1\tlocalhost {HOST_NAME}\n::1\tlocalhost\n"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's, for images that set none."""
_ALONE = (
    "--containall",  # own processes and IPC, few devices, none of the caller's variables
    "--no-home",
    "--no-mount",
    # /tmp, the caller's folder, the host's file systems, and what apptainer.conf binds (/etc/hosts, /etc/localtime)
    "tmp,cwd,hostfs,bind-paths",
    "--no-rocm",
    "--no-eval",  # arguments as they are, as Docker takes them
    "--no-privs",
    "--net",
    "--network",
    "none",
    "--hostname",
    HOST_NAME,
)
_OPTION = re.compile(
    "(APPTAINER|SINGULARITY)(?!_(CACHEDIR|CONFIGDIR|TMPDIR|DISABLE_CACHE|AUTH_FILE|DOCKER_USERNAME|DOCKER_PASSWORD)$)"
)
"""Not where Apptainer keeps its files and how it logs in: nothing of a container depends on those."""


def host_variables(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without Apptainer's options: a site's APPTAINER_BIND is added to `--mount`, and others
    make the root writable or set variables inside."""
    return {name: value for name, value in caller.items() if not _OPTION.match(name)}


def unsupported(spec: ContainerSpec) -> str:
    """What of a specification Apptainer can't give a container; empty: nothing. Bounds (memory, processes, /dev/shm)
    are no part of it: nobody has them there (docs/podman-apptainer.md)."""
    wanted = {
        "a user of its own": spec.user is not None,
        "volumes with the image's content": bool(spec.copied_volumes),
        "a network": spec.network != "none",
        "a writable root": not spec.read_only,
        "single devices": bool(spec.devices),
    }
    return ", ".join(name for name, asked in wanted.items() if asked)


def exec_command(spec: ContainerSpec, image: ImageInfo, sandbox: Path, folders: Mapping[str, Path]) -> list[str]:
    """Runs the command of a container. The root is read-only, as Apptainer has it without `--writable`.

    Its variables are those that Docker would set: Apptainer's own (LD_LIBRARY_PATH, PS1, ...) are no part of the image.
    `folders`: path in the container -> folder of this machine, for the spec's volumes (read-only inside: the caller
    fills them), for its tmpfs, and for /etc/hosts.
    """
    read_only = {*spec.volumes, *spec.binds.values(), "/etc/hosts"}
    mounts = []
    for path, folder in [*folders.items(), *((inside, outside) for outside, inside in spec.binds.items())]:
        row = io.StringIO()  # the value of `--mount` is CSV; `--bind` splits paths at commas and colons
        fields = ["type=bind", f"source={folder}", f"destination={path}", *(["ro"] if path in read_only else [])]
        csv.writer(row, lineterminator="").writerow(fields)
        mounts += ["--mount", row.getvalue()]
    home = "/root" if image.user.partition(":")[0] in ("", "0", "root") else "/"
    variables = {"PATH": _PATH, "HOSTNAME": HOST_NAME, "HOME": home, **image.env, **spec.env}
    return [
        *(PROGRAM, "--silent", "exec", *_ALONE),
        "--nv" if spec.device_requests else "--no-nv",  # without a word it is for apptainer.conf to say
        *("--pwd", image.workdir or "/"),
        *mounts,
        str(sandbox),
        *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())),
        *spec.cmd,
    ]
