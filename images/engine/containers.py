"""Containers: made, run, listed, removed, and swept after a run that was killed."""

import os
import re
import socket
import tarfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

import docker.errors
import requests
from docker.types import LogConfig, Mount, Ulimit

from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import plain_line
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage, engine_error_kind
from images.engine.runtime import KILLED, ContainerSpec, Exit, Stopped
from images.errors import Problem, command, innermost_error, root_cause

RUN_LABEL = "dev.truetag.run"
OWNER_LABEL = "dev.truetag.owner"
HOST_NAME = "validation"
"""Name of a container without network, which resolves to the loopback address.

The engine resolves a container's name on a network only. `torchrun --standalone`, and from torch 2.13 on `torchrun` of
one node without `--master-port` (torch/distributed/run.py takes the c10d rendezvous for both), hands that name to its
workers as the master's address, and they wait 300 s for it.
"""
_OOM_DELAY = 0.3  # seconds by which the engine may learn of a kill for memory later than of the end of the container
_KILLED_DELAY = 10.0  # the same where the container's end was a kill: beside load news of its cause may take long
_USED_BY = re.compile(r"container ([0-9a-f]{12,}) is using its referenced image")


@contextmanager
def asking(where: str, *, image: str | None = None, then: str = "") -> Iterator[None]:
    """Turns what the SDK and its transport raise into EngineError; a missing `image` into NoSuchImage."""
    try:
        yield
    except docker.errors.APIError as error:
        not_found = isinstance(error, docker.errors.NotFound)
        said = str(error.explanation if not_found else error.explanation or error)
        kind = engine_error_kind(said, not_found=not_found)
        if image is not None and kind is EngineErrorKind.NO_SUCH_IMAGE:
            then = f"build it (`{command('build', 'NAME')}`) or pull it"
            problem = Problem(where=image, cause="the engine has no such image", then=then)
            raise NoSuchImage(problem, kind, code=2) from None
        if image is not None and kind is EngineErrorKind.BAD_REFERENCE:
            then = "write NAME, NAME:TAG, NAME@sha256:... or an image ID; `docker images` lists what is there"
            raise EngineError(
                Problem(where=where, cause="is no name of an image", then=then), kind, code=2
            ) from None
        if not then and (used := _USED_BY.search(said)):
            then = f"`docker rm --force {used[1]}` removes that container, if nobody needs it; then try again"
        raise EngineError(
            Problem(where=where, cause=f"the engine says: {said}", then=then), kind
        ) from None
    except (
        requests.exceptions.RequestException,
        docker.errors.DockerException,
        tarfile.ReadError,
        OSError,
    ) as error:
        root = innermost_error(error)
        if (
            isinstance(root, OSError) and root.filename
        ):  # a file of ours, read while the request was sent
            problem = Problem(where=where, cause=f"{root.strerror}: {root.filename}")
            raise EngineError(problem) from None
        cause = f"the connection to the engine broke: {root_cause(error)}"
        then = "is the engine still running (`docker info`), and its disk not full?"
        raise EngineError(Problem(where=where, cause=cause, then=then)) from None


class Container:
    """One container, made by `Engine.container`, which also removes it."""

    def __init__(self, sdk: Any, container_id: str, name: str) -> None:
        self._sdk = sdk
        self.id = container_id
        self.name = name
        self._output: Iterator[tuple[bytes | None, bytes | None]] | None = None
        self._input: Any = None  # a socket, or what the SDK has in its place

    def put(self, files: Files, to: str) -> None:
        """Copy files into the folder `to`, before or after the start. Raises UserError.

        With a read-only root, `to` must lie in one of the spec's volumes: the engine refuses all other places.
        """
        with asking(self.name):
            self._sdk.put_archive(self.id, to, pack(files))

    def get_file(self, path: str, *, most: int = -1) -> bytes:
        """The content of a file, or its first `most` bytes, also after the end (but a tmpfs is gone then).

        Raises FileNotFoundError where there is no file, or something else: a link, a folder.
        """
        with asking(self.name), suppress(docker.errors.NotFound):
            chunks, _ = self._sdk.get_archive(self.id, path)
            with tarfile.open(
                fileobj=cast("IO[bytes]", ChunkReader(iter(chunks))), mode="r|"
            ) as archive:
                for member in archive:
                    if member.isreg() and (data := archive.extractfile(member)):
                        return data.read(most)
        raise FileNotFoundError(path)

    def has(self, path: str) -> bool:
        """Whether there is anything at a path, be it a link to nothing."""
        with asking(self.name), suppress(docker.errors.NotFound):
            self._sdk.get_archive(self.id, path)
            return True
        return False

    def start(self, stdin: bytes = b"") -> None:
        """Start it, and send `stdin` if its spec has one. What it prints is kept for `lines` from the first byte on.

        Raises UserError.
        """
        with asking(self.name):
            self._output = self._sdk.attach(
                self.id, stream=True, demux=True, stdout=True, stderr=True, logs=False
            )
            if stdin:
                # Before the start: what is attached later misses no byte of it, and nobody else is there to read it.
                self._input = self._sdk.attach_socket(self.id, params={"stdin": 1, "stream": 1})
            self._sdk.start(self.id)
            if stdin:
                getattr(self._input, "_sock", self._input).sendall(stdin)

    def lines(
        self, timeout: float | None = None, *, most: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """What it prints, line by line, until it ends: `stdout` or `stderr`, and the line.

        Kills it and raises Stopped after `timeout` seconds, or `most` bytes of both streams.
        """
        if self._output is None:
            raise RuntimeError("lines() of a container that was not started")
        begun = {"stdout": bytearray(), "stderr": bytearray()}
        printed, ended = 0, False
        try:
            with self._deadline(timeout), asking(self.name):
                for both in self._output:
                    printed += sum(len(data or b"") for data in both)
                    if most is not None and printed > most:
                        cause = f"printed more than {most / 1e6:.0f} MB and was stopped"
                        then = "run it alone to see what it prints"
                        raise Stopped(Problem(where=self.name, cause=cause, then=then), code=1)
                    for stream, data in zip(begun, both, strict=True):
                        if b"\n" not in (
                            data or b""
                        ):  # a line without end must not be copied with each part of it
                            begun[stream] += data or b""
                            continue
                        *whole, rest = (bytes(begun[stream]) + (data or b"")).split(b"\n")
                        begun[stream] = bytearray(rest)
                        yield from ((stream, plain_line(line)) for line in whole)
                ended = True
        finally:
            if not ended:
                # An engine ends no container whose output nobody takes, and other calls wait for it meanwhile (seen
                # with 20.10).
                with (
                    ThreadPoolExecutor(max_workers=1) as pool,
                    suppress(OSError, docker.errors.DockerException),
                ):
                    killing = pool.submit(self.kill)
                    for _ in self._output:
                        if killing.done() and killing.exception():
                            break
            if self._input is not None:
                # Not before: to close it ends `ssh`, which may not have sent everything yet.
                with suppress(OSError):
                    self._input.close()
        yield from ((stream, plain_line(bytes(rest))) for stream, rest in begun.items() if rest)

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait for its end. Kills it and raises Stopped after `timeout` seconds."""
        with self._deadline(timeout), asking(self.name):
            code = self._sdk.wait(self.id, timeout=None)["StatusCode"]
            details = self._sdk.inspect_container(self.id)
            state, bounded = details["State"], details["HostConfig"].get("Memory")
            oom = state["OOMKilled"]
            if bounded and not oom:
                # Ask the engine's events: its state holds what was known when it ended, which may be too early.
                began, ended = (
                    datetime.fromisoformat(state[name]).timestamp()
                    for name in ("StartedAt", "FinishedAt")
                )
                until = ended + (_KILLED_DELAY if code == KILLED else _OOM_DELAY)
                filters = {"container": [self.id], "event": ["oom"]}
                events = self._sdk.events(
                    since=f"{began:.6f}", until=f"{until:.6f}", filters=filters
                )
                oom = any(True for _ in events)
        return Exit(code=code, oom=oom, error=state["Error"])

    def run(self, timeout: float | None = None) -> Exit:
        """Start it, collect what it prints, wait for its end. Raises Stopped, UserError."""
        self.start()
        printed = {"stdout": "", "stderr": ""}
        for stream, text in self.lines(timeout):
            printed[stream] += f"{text}\n"
        return replace(self.wait(timeout), stdout=printed["stdout"], stderr=printed["stderr"])

    def kill(self) -> None:
        """End it at once. One that has ended is no error."""
        try:
            self._sdk.kill(self.id)
        except docker.errors.APIError as error:
            if error.status_code not in (requests.codes.conflict, requests.codes.not_found):
                raise

    @contextmanager
    def _deadline(self, seconds: float | None) -> Iterator[None]:
        """Kills the container when time is up: the only interruption that reaches a blocked read on any transport."""
        if seconds is None:
            yield
            return
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        if expired.is_set():
            cause = f"did not end within {seconds:g} s and was stopped"
            raise Stopped(
                Problem(where=self.name, cause=cause, then="run it alone, or longer"), code=1
            )


def create(sdk: Any, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
    """Create a container with a volume for each of the spec's paths; the labels are on both. Returns its ID.

    Raises NoSuchImage, EngineError.
    """
    alone = spec.network == "none"
    limits: dict[str, Any] = {}
    if spec.capabilities is not None:
        limits |= {
            "cap_drop": ["ALL"],
            "cap_add": [*spec.capabilities],
            "security_opt": ["no-new-privileges"],
        }
    host = sdk.create_host_config(
        network_mode=spec.network,
        extra_hosts={HOST_NAME: "127.0.0.1"} if alone else None,
        read_only=spec.read_only,
        tmpfs=dict(spec.tmpfs),
        mounts=[
            *(
                Mount(path, None, type="volume", no_copy=True, labels=dict(labels))
                for path in spec.volumes
            ),
            *(
                Mount(path, None, type="volume", labels=dict(labels))
                for path in spec.copied_volumes
            ),
            *(
                Mount(inside, path, type="bind", read_only=True)
                for path, inside in spec.binds.items()
            ),
        ],
        devices=list(spec.devices),
        shm_size=spec.shm_size,
        mem_limit=spec.memory,
        memswap_limit=spec.memory,
        pids_limit=spec.processes,
        device_requests=[dict(one) for one in spec.device_requests] or None,
        ulimits=[Ulimit(name=one, soft=most, hard=most) for one, most in spec.ulimits.items()],
        init=spec.init,  # reaps what the command leaves behind, and passes signals on
        log_config=LogConfig(
            type=LogConfig.types.JSON, config={"max-size": "64m", "max-file": "1"}
        ),
        **limits,
    )
    with asking(spec.name or spec.image, image=spec.image):
        created = sdk.create_container(
            spec.image,
            list(spec.cmd),
            entrypoint=[""],
            healthcheck={
                "test": ["NONE"]
            },  # an image's own would run beside what we start, as its user
            stdin_open=spec.stdin,
            environment=dict(spec.env),
            user=spec.user,
            labels=dict(labels),
            hostname=HOST_NAME if alone else None,
            host_config=host,
            use_config_proxy=False,
        )
    return str(created["Id"])


def remove(sdk: Any, container_id: str) -> None:
    """Remove a container with its volumes. One that is gone, or is being removed, is no error."""
    try:
        sdk.remove_container(container_id, v=True, force=True)
    except docker.errors.APIError as error:
        if error.status_code not in (requests.codes.not_found, requests.codes.conflict):
            raise


def sweep(sdk: Any) -> tuple[str, ...]:
    """Remove containers that killed runs of this machine left behind, with their volumes. Returns their names."""
    gone = []
    with asking("what killed runs left behind"):
        for container in sdk.containers(all=True, filters={"label": RUN_LABEL}):
            if is_orphan(container["Labels"] or {}):
                remove(sdk, container["Id"])
                gone.append(
                    container["Names"][0].lstrip("/")
                    if container["Names"]
                    else container["Id"][:12]
                )
    return tuple(gone)


def owner(pid: int) -> str:
    """A process: its machine since its last start, its number, and when it started (jiffies since boot).

    Others that share the engine may have the machine's name, and a later process the number.
    """
    boot, status = "", ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        status = Path(f"/proc/{pid}/stat").read_text()
    started = status.rpartition(")")[2].split()[19:20]
    return f"{socket.gethostname()}/{boot}:{pid}:{''.join(started)}"


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Whether the process that made it ran on this machine and has ended."""
    made_by = labels.get(OWNER_LABEL, "")
    machine, _, rest = made_by.partition(":")
    pid = rest.partition(":")[0]
    return (
        machine == owner(os.getpid()).partition(":")[0]
        and pid.isdigit()
        and owner(int(pid)) != made_by
    )
