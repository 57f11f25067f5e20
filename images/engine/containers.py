"""Creates, runs and removes containers, and cleans up those that killed commands left behind."""

import errno
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
import urllib3.exceptions
from docker.types import LogConfig, Mount, Ulimit

from images.config.selectors import image_name
from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import plain_line
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage, engine_error_kind
from images.engine.runtime import KILLED, ContainerSpec, Exit, Stopped
from images.errors import Problem, command, innermost_error, root_cause

RUN_LABEL = "dev.truetag.run"
OWNER_LABEL = "dev.truetag.owner"
HOST_NAME = "validation"
"""Name of a container without network, which resolves to the loopback address.

The engine resolves a container's name on a network only. `torchrun --standalone`, and from torch
2.13 on `torchrun` of one node without `--master-port` (torch/distributed/run.py takes the c10d
rendezvous for both), hands that name to its workers as the master's address, and they wait 300 s
for it.
"""
_OOM_DELAY = 0.3
"""Seconds after a container's end within which the engine learns that memory ran out in it."""
_KILLED_DELAY = 10.0
"""`_OOM_DELAY` for a container that ended by a kill: on a busy machine the news may take longer."""
_NEXT_STEPS = {
    errno.EACCES: "make this file readable, then give the command again",
    errno.EPERM: "make this file readable, then give the command again",
    errno.ENOENT: "it was removed or renamed meanwhile: give the command again",
    errno.ESTALE: "wait until no program writes this file, then give the command again",
}
"""Error of reading a file for the engine -> what its user does."""
_NEXT_STEP_OF_DISK = (
    "see whether the disk that has this file is in order (`dmesg`), then give the command again"
)
_USED_BY = re.compile(r"container ([0-9a-f]{12,}) is using its referenced image")


@contextmanager
def engine_errors(where: str, *, image: str | None = None, then: str = "") -> Iterator[None]:
    """Turn errors of the Docker SDK and of the connection into EngineError, within a `with` block.

    `where` says in messages what the request was about, such as an image's name. `image` is the
    image that the request needs: if the engine does not have it, NoSuchImage is raised. `then` is
    the next step for the user, if there is a better one than this function's own.
    """
    try:
        yield
    except docker.errors.APIError as error:
        raise _refusal(error, where, image, then) from None
    except (
        requests.exceptions.RequestException,
        docker.errors.DockerException,
        # The SDK reads an answer in chunks by itself, so the errors of that come as they are.
        urllib3.exceptions.HTTPError,
        tarfile.ReadError,
        OSError,
    ) as error:
        raise _broken_connection(error, where) from None


def _refusal(
    error: docker.errors.APIError, where: str, image: str | None, then: str
) -> EngineError:
    """Return our error for a request that the engine answered with an error, for `engine_errors`.

    `where` says what the request was about. `image`: the one that it needs, or None. If the engine
    does not have that, or its name is malformed, the error says so in our words. Else it has the
    engine's words. `then`: the next step for the user; empty if the caller has no advice.
    """
    # `explanation` is the engine's own text. Without one, the SDK's text has the HTTP status, and
    # the URL. A URL may have the word `image`, by which a 404 is judged, so it is left out there.
    not_found = isinstance(error, docker.errors.NotFound)
    if not_found:
        reason = str(error.explanation)
    else:
        reason = str(error.explanation or error)
    kind = engine_error_kind(reason, not_found=not_found)

    if image is not None and kind is EngineErrorKind.NO_SUCH_IMAGE:
        name = image if image_name(image) else "NAME"
        then = f"build it (`{command('build', name)}`) or pull it"
        problem = Problem(where=image, cause="the engine has no such image", then=then)
        return NoSuchImage(problem, kind, code=2)
    if image is not None and kind is EngineErrorKind.BAD_REFERENCE:
        then = (
            "write NAME, NAME:TAG, NAME@sha256:... or an image ID, with NAME in small letters; "
            "`docker images` lists what is there"
        )
        cause = f"is no name of an image, as the engine says: {reason}"
        problem = Problem(where=image, cause=cause, then=then)
        return EngineError(problem, kind, code=2)

    # An image can't be removed while a container uses it: name that container's ID.
    user = _USED_BY.search(reason)
    if user and not then:
        then = (
            f"`docker rm --force {user[1]}` removes that container, "
            "if nobody needs it; then try again"
        )
    then = then or "see the engine's own log (`sudo journalctl -u docker`), then try again"
    problem = Problem(where=where, cause=f"the engine says: {reason}", then=then)
    return EngineError(problem, kind)


def _broken_connection(error: Exception, where: str) -> EngineError:
    """Return the error to raise when the connection to the engine broke during a request.

    `error` is the exception that the request raised; `where` says in the message what the request
    was about. A file of ours that could not be read while it was sent gets a message of its own.
    """
    # The libraries wrap the error of the system: this is the one inside.
    root = innermost_error(error)
    # With a file name, it is a file of ours that could not be read while the request was sent.
    if isinstance(root, OSError) and root.filename:
        cause = f"a file for the engine can't be read: {root.filename}: {root.strerror}"
        then = _NEXT_STEPS.get(root.errno or 0, _NEXT_STEP_OF_DISK)
        return EngineError(Problem(where=where, cause=cause, then=then))
    reason = root_cause(error)
    if isinstance(root, ValueError):
        # The size of the next chunk could not be read, because nothing came any more.
        reason = "its answer ended in the middle, so it went away or was stopped"
    cause = f"the connection to the engine broke: {reason}"
    then = (
        "see whether the engine still runs (`docker info`) and its disk has space "
        "(`docker system df`), then give the command again"
    )
    return EngineError(Problem(where=where, cause=cause, then=then))


class Container:
    """A container that `Engine.container` created, and removes at the end of its `with` block."""

    def __init__(self, sdk: Any, container_id: str, name: str) -> None:
        self._sdk = sdk
        self.id = container_id
        self.name = name
        # Chunks of stdout and of stderr, one of which is None; None before the start.
        self._output: Iterator[tuple[bytes | None, bytes | None]] | None = None
        self._input: Any = None  # the socket of its standard input, maybe wrapped by the SDK

    def put(self, files: Files, to: str) -> None:
        """Copy files into the folder `to` of the container, whether it runs or not.

        If its root is read-only, `to` must lie in one of the spec's volumes: the engine refuses all
        other places. Raises EngineError.
        """
        with engine_errors(self.name):
            self._sdk.put_archive(self.id, to, pack(files))

    def get_file(self, path: str, *, most: int = -1) -> bytes:
        """Return the content of a file in the container, or its first `most` bytes (-1: all).

        The container need not run; files of a tmpfs are gone once it has ended. Links are followed
        within the container. Raises FileNotFoundError if there is no ordinary file at the path (a
        folder counts as none), and EngineError.
        """
        with engine_errors(self.name), suppress(docker.errors.NotFound):
            chunks, facts = self._sdk.get_archive(self.id, path)
            # The engine sends a link as it is, and says where it leads in the end.
            if facts.get("linkTarget"):
                chunks, _ = self._sdk.get_archive(self.id, facts["linkTarget"])
            # The engine sends a tar. Its first member is what lies at the path; for a folder, those
            # that follow are the files in it.
            stream = cast("IO[bytes]", ChunkReader(iter(chunks)))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                member = archive.next()
                content = archive.extractfile(member) if member and member.isreg() else None
                if content:
                    return content.read(most)
        raise FileNotFoundError(path)

    def has(self, path: str) -> bool:
        """Return whether the container has a file, folder or link (even a broken one) at a path."""
        with engine_errors(self.name), suppress(docker.errors.NotFound):
            self._sdk.get_archive(self.id, path)
            return True
        return False

    def start(self, stdin: bytes = b"") -> None:
        """Start the container, and write `stdin` to its standard input; nothing if it is empty.

        The container must have been created with an open standard input for that. Its output is
        kept from the first byte on; `lines` returns it. Raises EngineError.
        """
        with engine_errors(self.name):
            self._output = self._sdk.attach(
                self.id, stream=True, demux=True, stdout=True, stderr=True, logs=False
            )
            if stdin:
                # Attached before the start, so that the program finds its input from the beginning.
                self._input = self._sdk.attach_socket(self.id, params={"stdin": 1, "stream": 1})
            self._sdk.start(self.id)
            if stdin:
                # The SDK may return a wrapper that can only be read; the socket is inside it.
                getattr(self._input, "_sock", self._input).sendall(stdin)

    def lines(
        self, timeout: float | None = None, *, most: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield each line that the container prints until it ends, as (`stdout` or `stderr`, line).

        Lines have no line end, no colours, and only the last state of a progress bar. The container
        is killed, and Stopped is raised, after `timeout` seconds, or once both streams together
        have printed more than `most` bytes. It is also killed if the caller stops iterating. Raises
        RuntimeError if the container was not started.
        """
        if self._output is None:
            raise RuntimeError("lines() of a container that was not started")
        # What each stream has printed since its last line end.
        unfinished = {"stdout": bytearray(), "stderr": bytearray()}
        printed = 0
        has_ended = False
        try:
            with self._deadline(timeout), engine_errors(self.name):
                for stdout, stderr in self._output:
                    # One of the two may be None.
                    chunks = {"stdout": stdout or b"", "stderr": stderr or b""}
                    printed += sum(map(len, chunks.values()))
                    if most is not None and printed > most:
                        raise self._printed_too_much(most)
                    for stream, chunk in chunks.items():
                        for line in _complete_lines(unfinished[stream], chunk):
                            yield stream, plain_line(line)
                has_ended = True
        finally:
            if not has_ended:
                self._kill_and_drain(self._output)
            # The input is closed only now: closing it ends the `ssh` process of a remote engine,
            # which may not have sent all of the input before.
            if self._input is not None:
                with suppress(OSError):
                    self._input.close()

        # The last line of a stream may have no line end.
        for stream, last_line in unfinished.items():
            if last_line:
                yield stream, plain_line(bytes(last_line))

    def _printed_too_much(self, most: int) -> Stopped:
        """Return the error for a container that printed more than `most` bytes."""
        cause = f"printed more than {most / 1e6:.0f} MB and was stopped"
        then = (
            "`docker run --rm IMAGE` shows what the image prints at its start: "
            "take that out of the image, and build it again"
        )
        return Stopped(Problem(where=self.name, cause=cause, then=then), code=1)

    def _kill_and_drain(self, output: Iterator[object]) -> None:
        """Kill the container while reading the remaining output; errors are ignored.

        An engine does not end a container whose output nobody reads, and blocks other requests
        meanwhile (seen with Docker 20.10).
        """
        with (
            ThreadPoolExecutor(max_workers=1) as pool,
            suppress(OSError, docker.errors.DockerException),
        ):
            killing = pool.submit(self.kill)
            # The output ends with the container. If the kill failed, that might never be.
            for _ in output:
                if killing.done() and killing.exception():
                    break

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait until the container has ended, and return how.

        That is its exit status, whether the engine noticed that memory ran out (`oom`), and why it
        could not start, if so. After `timeout` seconds it is killed and Stopped is raised. Raises
        EngineError.
        """
        with self._deadline(timeout), engine_errors(self.name):
            code = self._sdk.wait(self.id, timeout=None)["StatusCode"]
            details = self._sdk.inspect_container(self.id)
            state = details["State"]
            oom = state["OOMKilled"]
            # The engine writes this state when the container ends, and may learn only after that
            # that memory ran out. It then reports an event, so wait for one; but only if the
            # container has a limit of memory.
            has_memory_limit = details["HostConfig"].get("Memory")
            if has_memory_limit and not oom:
                delay = _KILLED_DELAY if code == KILLED else _OOM_DELAY
                oom = self._was_out_of_memory(state["StartedAt"], state["FinishedAt"], delay)
        return Exit(code=code, oom=oom, error=state["Error"])

    def _was_out_of_memory(self, started_at: str, finished_at: str, delay: float) -> bool:
        """Return whether the engine reported an `oom` event of this container, which has ended.

        Linux kills a process of a container that needs more memory than the container's limit; the
        engine reports that as an event. Both times are the engine's, such as
        `2026-11-28T10:20:30.123456789Z`. The request waits until `delay` seconds after the end,
        because the event may come late.
        """
        started = datetime.fromisoformat(started_at).timestamp()
        finished = datetime.fromisoformat(finished_at).timestamp()
        oom_events = self._sdk.events(
            since=f"{started:.6f}",
            until=f"{finished + delay:.6f}",
            filters={"container": [self.id], "event": ["oom"]},
        )
        # The events come as a stream, which ends at `until`. One is enough.
        first_event = next(iter(oom_events), None)
        return first_event is not None

    def run(self, timeout: float | None = None) -> Exit:
        """Start the container, wait until it has ended, and return how, with what it printed.

        `timeout` in seconds is for its output, and again for the end. Raises Stopped after it, and
        EngineError.
        """
        self.start()
        printed = {"stdout": "", "stderr": ""}
        for stream, text in self.lines(timeout):
            printed[stream] += f"{text}\n"
        return replace(self.wait(timeout), stdout=printed["stdout"], stderr=printed["stderr"])

    def kill(self) -> None:
        """Kill the container; does nothing if it has ended. Raises an error of the SDK."""
        try:
            self._sdk.kill(self.id)
        except docker.errors.APIError as error:
            if error.status_code not in (requests.codes.conflict, requests.codes.not_found):
                raise

    @contextmanager
    def _deadline(self, seconds: float | None) -> Iterator[None]:
        """Kill the container and raise Stopped if a `with` block takes longer than `seconds`.

        A thread kills it when the time is over. That ends a read from the engine that the block
        waits in, whether by socket, TCP or SSH. `seconds`: None is no limit.
        """
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
            then = (
                "give the command again when this machine has less to do; if it ends so each time, "
                "something in the image waits at its start"
            )
            problem = Problem(where=self.name, cause=cause, then=then)
            raise Stopped(problem, code=1)


def _complete_lines(unfinished: bytearray, chunk: bytes) -> list[bytes]:
    """Return the lines that a chunk of output completes, and keep its last part in `unfinished`."""
    # A long line must not be copied with each of its chunks, so it only grows until it ends.
    if b"\n" not in chunk:
        unfinished += chunk
        return []
    *lines, last = (bytes(unfinished) + chunk).split(b"\n")
    unfinished[:] = last
    return lines


def create(sdk: Any, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
    """Create a container and its volumes with these labels, without starting it; return its ID.

    `sdk` is the Docker SDK's APIClient. Raises NoSuchImage if the engine lacks the image, and
    EngineError.
    """
    # Without a network, the container's name must be resolved without one, too (HOST_NAME).
    host_name = None
    extra_hosts = None
    if spec.network == "none":
        host_name = HOST_NAME
        extra_hosts = {HOST_NAME: "127.0.0.1"}

    restrictions: dict[str, Any] = {}
    if spec.capabilities is not None:
        restrictions["cap_drop"] = ["ALL"]
        restrictions["cap_add"] = list(spec.capabilities)
        restrictions["security_opt"] = ["no-new-privileges"]
    host_config = sdk.create_host_config(
        network_mode=spec.network,
        extra_hosts=extra_hosts,
        read_only=spec.read_only,
        tmpfs=dict(spec.tmpfs),
        mounts=_mounts(spec, labels),
        volumes_from=[spec.volumes_from] if spec.volumes_from else None,
        devices=list(spec.devices),
        shm_size=spec.shm_size,
        mem_limit=spec.memory,
        memswap_limit=spec.memory,
        pids_limit=spec.processes,
        device_requests=[dict(request) for request in spec.device_requests] or None,
        ulimits=[Ulimit(name=name, soft=most, hard=most) for name, most in spec.ulimits.items()],
        init=spec.init,  # reaps what the command leaves behind, and passes signals on
        log_config=LogConfig(
            type=LogConfig.types.JSON, config={"max-size": "64m", "max-file": "1"}
        ),
        **restrictions,
    )
    with engine_errors(spec.name or spec.image, image=spec.image):
        created = sdk.create_container(
            spec.image,
            list(spec.cmd),
            entrypoint=[""],
            # An image's own health check would run in the container too, as its user.
            healthcheck={"test": ["NONE"]},
            stdin_open=spec.stdin,
            environment=dict(spec.env),
            user=spec.user,
            labels=dict(labels),
            hostname=host_name,
            host_config=host_config,
            use_config_proxy=False,
        )
    return str(created["Id"])


def _mounts(spec: ContainerSpec, labels: Mapping[str, str]) -> list[Mount]:
    """Return the volumes of a container, with the labels on them, and its folders of the host."""
    mounts = []
    for path in spec.volumes:
        mounts.append(Mount(path, None, type="volume", no_copy=True, labels=dict(labels)))
    for path in spec.copied_volumes:
        mounts.append(Mount(path, None, type="volume", labels=dict(labels)))
    for host_folder, path in spec.binds.items():
        mounts.append(Mount(path, host_folder, type="bind", read_only=True))
    return mounts


def remove(sdk: Any, container_id: str) -> None:
    """Remove a container with its volumes, killing it if it runs.

    Does nothing if it is gone or is being removed. Raises an error of the SDK.
    """
    try:
        sdk.remove_container(container_id, v=True, force=True)
    except docker.errors.APIError as error:
        if error.status_code not in (requests.codes.not_found, requests.codes.conflict):
            raise


def sweep(sdk: Any) -> tuple[str, ...]:
    """Remove the containers, with their volumes, that killed commands of this machine left behind.

    `sdk` is the Docker SDK's APIClient. Returns the names of the removed containers, or the first
    12 characters of their IDs. Raises EngineError.
    """
    removed = []
    with engine_errors("what killed runs left behind"):
        for container in sdk.containers(all=True, filters={"label": RUN_LABEL}):
            # Else its command still runs, is one of another machine, or is not known.
            if not is_orphan(container["Labels"] or {}):
                continue
            remove(sdk, container["Id"])
            if container["Names"]:
                removed.append(container["Names"][0].lstrip("/"))
            else:
                removed.append(container["Id"][:12])
    return tuple(removed)


def process_identity(pid: int) -> str:
    """Return a text that identifies a process of this machine for good: HOST/BOOT:PID:START.

    So two equal texts mean the same process. BOOT is Linux's ID of the machine's last start,
    because machines that share an engine may have the same host name. START is when the process
    started (jiffies since boot), because a later process may get the same number; it is empty if
    the process has ended.
    """
    boot = ""
    status = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        status = Path(f"/proc/{pid}/stat").read_text()
    # The second field is the program's name in parentheses, and may have blanks. The start is
    # field 22 (proc(5)), so the 20th after the name.
    started = status.rpartition(")")[2].split()[19:20]
    return f"{socket.gethostname()}/{boot}:{pid}:{''.join(started)}"


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Return whether a container's labels name a process of this machine that has ended.

    The label OWNER_LABEL is the `process_identity` of the command that made the container. False
    for a container without this label, or of another machine.
    """
    # HOST/BOOT:PID:START
    owner_label = labels.get(OWNER_LABEL, "")
    machine, _, process = owner_label.partition(":")
    this_machine = process_identity(os.getpid()).partition(":")[0]
    pid = process.partition(":")[0]
    if machine != this_machine or not pid.isdigit():
        return False
    # The process has ended if its number is free, or is that of a process that started later.
    return process_identity(int(pid)) != owner_label
