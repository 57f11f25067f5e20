"""The Docker Engine: one class with all that we ask of it, and which engine that is.

The SDK's session reaches an engine by a local socket, by TCP with TLS, and by SSH. Its own methods
for builds, pushes and registries hide what we need (BuildKit's stream, the headers with
credentials, the words of a registry), so this module, and no other, uses what the SDK keeps
private.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import docker
import docker.errors
import requests
from docker import auth
from docker.context import ContextAPI
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env, parse_repository_tag

from images.engine import configuration, containers
from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import BuildEvent, BuildResult, LogLine, Trace
from images.engine.containers import OWNER_LABEL, RUN_LABEL, Container, asking
from images.engine.failures import (
    BuildFailed,
    Cancelled,
    EngineError,
    EngineErrorKind,
    NoSuchImage,
    engine_error_kind,
)
from images.engine.runtime import PLATFORM, ContainerSpec, ImageInfo, Work, engine_facts, image_info
from images.errors import Problem, UserError, command, failed, root_cause, wrong
from images.host import cache
from images.host.hashing import sha256

if TYPE_CHECKING:
    from images.engine.exported import ImagePart

OnEvent = Callable[[BuildEvent], None]

_UNREACHABLE = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
"""What is raised when an engine does not answer."""
_TIMEOUT = 120.0  # seconds of silence on a request that has nothing long to do
_TAR = {"Content-Type": "application/x-tar"}
_ATTEMPTS = 3
_BACKOFF = 5.0  # seconds before the second attempt; doubled before each further one
_PULL_HINT = (
    "check the name and that its registry can be reached; `docker login` where it asks for a "
    "password"
)


def ignore(_: BuildEvent) -> None:
    """Takes events that nobody wants."""


class Engine(AbstractContextManager["Engine"]):
    """A connection to one Docker Engine. Thread safe; use it as a context manager."""

    def __init__(self, base_url: str, tls: TLSConfig | bool = False) -> None:
        """Connect.

        Raises UserError when it has no BuildKit, the SDK's and OS errors when it doesn't answer.
        """
        address, host = base_url, base_url.removeprefix("ssh://")
        if host != base_url and ":" not in host and shutil.which("ssh"):
            # The port that ~/.ssh/config says: where none is named, the SDK asks `ssh` for 22.
            said = subprocess.run(
                ["ssh", "-G", "--", host], capture_output=True, text=True, check=False
            ).stdout
            ports = [
                line.removeprefix("port ") for line in said.splitlines() if line.startswith("port ")
            ]
            address = f"{base_url}:{ports[0] if ports else 22}"
        self.sdk: Any = (
            docker.APIClient(  # Any: the published types of the SDK lack most of its parameters
                base_url=address,
                tls=tls,
                version="auto",
                timeout=cast(int, _TIMEOUT),
                max_pool_size=64,
                use_ssh_client=base_url.startswith(
                    "ssh://"
                ),  # OpenSSH's, with its configuration, keys and agent
            )
        )
        self.run_id = uuid.uuid4().hex[:12]
        self.facts = engine_facts(base_url, self.sdk.version(), self.sdk.info())
        self._work = Work()

    def __exit__(self, *_: object) -> None:
        self.sdk.close()

    def cancel(self) -> None:
        """Stop all builds and containers of this connection, from any thread: their callers get
        Cancelled.
        """
        self._work.cancel()

    def _cancel_build(self, build_id: str) -> None:
        """An engine that doesn't answer is no error: closing the connection, which has happened,
        cancels it as well.
        """
        with suppress(*_UNREACHABLE):
            self.sdk._post(self.sdk._url("/build/cancel"), params={"id": build_id}, timeout=10)

    @contextmanager
    def hold_lock(self, work: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Keep this user's other processes on this machine from doing the same work on this engine.

        `work`: a name for it, such as `build cu126-torch27`. `on_wait` is called once if another
        process does it at the moment. Raises Cancelled after `cancel`, UserError if no lock can be
        written.
        """

        def pause(seconds: float) -> None:
            if self._work.cancelled.wait(seconds):
                raise Cancelled

        where = self.facts.data_root if self.facts.local else self.facts.url
        known = f"{socket.gethostname()}\n{where}\n{work}"
        file = cache.folder() / "locks" / f"{sha256(known.encode())[:16]}.lock"
        with cache.hold_lock(file, on_wait=on_wait, pause=pause):
            yield

    def build(
        self,
        files: Files,
        tag: str | None,
        *,
        network: str | None = None,
        no_cache: bool = False,
        platform: str = PLATFORM,
        on_event: OnEvent = ignore,
        redact: Callable[[str], str] = str,
        sleep: Callable[[float], object] | None = None,
    ) -> BuildResult:
        """Build a context with BuildKit and tag the result.

        `network`: of its steps; None: the engine's default.

        A failure of the network, or of an engine that lost the context, is tried again twice, with
        doubled pauses (`sleep` gets seconds). The tag is set after the end, so that an interrupted
        build can't leave one. What steps print goes through `redact` before anybody sees it. Raises
        BuildFailed, Cancelled (see `cancel`), UserError when the engine refuses or goes away. Any
        exception cancels the build in the engine.
        """
        parameters = {
            "version": "2",  # BuildKit
            "dockerfile": "Dockerfile",
            "platform": platform,
            "networkmode": network,
            "nocache": "1" if no_cache else None,
        }
        known = (
            self.sdk._auth_configs.get_all_credentials()
        )  # what `docker login` stored for all registries
        headers = (
            {**_TAR, "X-Registry-Config": auth.encode_header(known).decode()} if known else _TAR
        )

        start = time.monotonic()
        for number in itertools.count(1):
            trace, build_id = Trace(redact), uuid.uuid4().hex
            try:
                with (
                    self._work.going_on(partial(self._cancel_build, build_id), always=False),
                    asking("build"),
                    self._messages(
                        "/build", {**parameters, "buildid": build_id}, headers, files
                    ) as said,
                ):
                    image_id = trace.image_id(said, on_event)
                    break
            except (
                BuildFailed
            ) as error:  # a step may be silent for as long as it likes: what it says counts
                if error.failure.kind not in ("network", "engine") or number == _ATTEMPTS:
                    raise
                delay = _BACKOFF * 2 ** (number - 1)
                again = f"attempt {number + 1} of {_ATTEMPTS} in {delay:g} s"
                on_event(
                    LogLine(
                        step="",
                        name="",
                        text=f"{error.failure.cause} ({error.failure.line}); {again}",
                    )
                )
                (sleep or self._work.cancelled.wait)(delay)
        if tag:
            self.tag(image_id, tag)
        return BuildResult(image_id=image_id, steps=trace.steps(), seconds=time.monotonic() - start)

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[Container]:
        """A container that is created but not started, and removed with its volumes on every way
        out.

        Raises NoSuchImage, UserError, Cancelled.
        """
        labels = {RUN_LABEL: self.run_id, OWNER_LABEL: containers.owner(os.getpid())}
        container_id = containers.create(self.sdk, spec, labels)
        with self._work.going_on(partial(containers.remove, self.sdk, container_id), always=True):
            yield Container(self.sdk, container_id, spec.name or spec.image)

    def sweep(self) -> tuple[str, ...]:
        """Remove containers that killed runs of this machine left behind, with their volumes.

        Returns their names.
        """
        return containers.sweep(self.sdk)

    @contextmanager
    def _messages(
        self,
        path: str,
        parameters: Mapping[str, str | None],
        headers: Mapping[str, str],
        files: Files,
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """The JSON messages of a long request, which may be silent for as long as it likes."""
        response = self.sdk._post(
            self.sdk._url(path),
            params=parameters,
            headers=headers,
            data=pack(files),
            stream=True,
            timeout=None,
        )
        try:
            self.sdk._raise_for_status(response)
            yield self.sdk._stream_helper(response, decode=True)
        finally:
            response.close()

    def inspect(self, ref: str) -> ImageInfo:
        """What the engine knows of an image (name, ID or name@digest). Raises NoSuchImage."""
        return image_info(self.inspected(ref))

    def inspected(self, ref: str) -> Mapping[str, Any]:
        """All that the engine says of an image. Raises NoSuchImage."""
        with asking(ref, image=ref):
            return cast("Mapping[str, Any]", self.sdk.inspect_image(ref))

    def find(self, ref: str) -> ImageInfo | None:
        """The image, or None where the engine lacks it."""
        try:
            return self.inspect(ref)
        except NoSuchImage:
            return None

    def history(self, ref: str) -> list[tuple[str, int]]:
        """How the image came to be, newest step first: the steps, each with the bytes it added.

        Raises NoSuchImage.
        """
        with asking(ref, image=ref):
            return [(one["CreatedBy"], one["Size"]) for one in self.sdk.history(ref)]

    def steps(self, ref: str) -> list[str]:
        """The build steps of an image, the first first, those of its base included.

        Raises NoSuchImage.
        """
        return [step for step, _ in reversed(self.history(ref))]

    def tag(self, source: str, name: str) -> None:
        """Give an image one more name (`repository:tag`), taking it from whatever bore it.

        Raises NoSuchImage.
        """
        repository, tag = parse_repository_tag(name)
        with asking(source, image=source):
            self.sdk.tag(source, repository, tag or "latest", force=True)

    def remove(self, ref: str, *, force: bool = False) -> None:
        """Take a name away, and the image with its last one. One that isn't there is no error."""
        try:
            with asking(ref, image=ref):
                self.sdk.remove_image(ref, force=force)
        except NoSuchImage:
            return

    untag = remove

    def exported(self, ref: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
        """Each blob of an exported image, layers too, readable until the next is asked for.

        Raises NoSuchImage.
        """
        with asking(ref, image=ref):
            # No limit: an engine says nothing until it has written the whole export to its disk.
            answer = self.sdk._get(self.sdk._url("/images/{0}/get", ref), stream=True, timeout=None)
            self.sdk._raise_for_status(answer)
            stream = cast("IO[bytes]", ChunkReader(answer.iter_content(1 << 21)))
            with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as outer:
                for member in outer:
                    if data := outer.extractfile(member) if member.isfile() else None:
                        yield member, data

    def parts(self, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        """The configuration of an image and its wanted layers (by diff ID), as they came; readers
        check each digest.

        An export of an older engine gives all layers, unnamed. Raises NoSuchImage, EngineError.
        """
        from images.engine import exported

        return exported.parts(self, info, wanted)

    def load(self, files: Files, name: str) -> ImageInfo:
        """An image in the form that `docker save` writes (manifest.json, its config, layers), which
        gives it `name`.

        Its ID follows from these bytes alone, where an imported one bears the time of its import.
        Raises UserError.
        """
        with asking(name), self._messages("/images/load", {"quiet": "1"}, _TAR, files) as messages:
            for message in messages:
                if "error" in message:
                    raise failed(name, f"can't be loaded: {message['error']}")
        return self.inspect(name)

    def fix_id(self, image_id: str, name: str) -> ImageInfo:
        """Write a built image's configuration anew, so that its ID follows from what is in it, and
        give that `name`.

        What can't be written so stays as it is, see images/engine/configuration.py; the containerd
        image store, too. Raises UserError.
        """
        built = self.inspected(image_id)
        config = configuration.canonical(built, self.steps(image_id))
        if config is None or self.facts.containerd_images:
            return self.inspect(image_id)
        repository, tag = parse_repository_tag(name)
        # The engine has the layers: it opens none of these files.
        layers = [
            f"{diff_id.removeprefix('sha256:')}/layer.tar" for diff_id in built["RootFS"]["Layers"]
        ]
        manifest = {
            "Config": "config.json",
            "RepoTags": [f"{repository}:{tag or 'latest'}"],
            "Layers": layers,
        }
        info = self.load(
            {"config.json": config, "manifest.json": json.dumps([manifest]).encode()}, name
        )
        former = self.find(image_id)
        if former and former.id != info.id and not former.tags:
            with suppress(EngineError):  # a container of an earlier build of it
                self.remove(image_id)
        return info

    def registry_digest(self, ref: str, timeout: float = 20) -> str | None:
        """The digest (`sha256:...`) a registry has for `ref` now; None when no registry answered
        within `timeout` s.

        Raises EngineError when the registry answered that there is no such image, or that we may
        not have it.
        """
        registry, _ = auth.resolve_repository_name(ref.split("@")[0])
        stored = auth.get_config_header(self.sdk, registry)  # by `docker login`
        try:
            url = self.sdk._url("/distribution/{0}/json", ref)
            headers = {"X-Registry-Auth": stored.decode()} if stored else {}
            answer = self.sdk._get(url, headers=headers, timeout=timeout)
            self.sdk._raise_for_status(answer)
            return str(answer.json()["Descriptor"]["digest"])
        except docker.errors.APIError as error:
            reason = str(error.explanation or error)
            kind = engine_error_kind(reason)
            if kind not in (EngineErrorKind.REGISTRY_REFUSAL, EngineErrorKind.BAD_REFERENCE):
                return None
            cause, then = f"the registry refuses it: {reason}", "check the name, or `docker login`"
            raise EngineError(Problem(where=ref, cause=cause, then=then), kind) from None
        except _UNREACHABLE:
            return None

    def pull(self, ref: str, *, platform: str = PLATFORM) -> ImageInfo:
        """Fetch an image (`name:tag`, `name@digest`) from its registry.

        Raises UserError with the registry's words.
        """
        repository, tag = parse_repository_tag(ref)
        with asking(ref, then=_PULL_HINT):
            for message in self.sdk.pull(
                repository, tag or "latest", stream=True, decode=True, platform=platform
            ):
                if "error" in message:
                    cause = f"can't be pulled: {message['error']}"
                    raise EngineError(
                        Problem(where=ref, cause=cause, then=_PULL_HINT), engine_error_kind(cause)
                    )
        return self.inspect(ref)


class NoEngine(UserError):  # noqa: N818  # said as an event
    """No engine was named and none answers on the usual sockets."""


def connect(url: str | None = None) -> Engine:
    """The engine to work with: `url`, else DOCKER_HOST, else Docker's current context, else a
    socket that answers.

    Sockets tried: the default one, the rootless one, then our private engine's. An engine that was
    named but does not answer is an error, never a reason to take another one. Raises UserError,
    `NoEngine` when none answers at all.
    """
    if named := _named_engine(url):
        source, address, tls = named
        try:
            return Engine(address, tls)
        except _UNREACHABLE as error:
            cause = f"no Docker Engine answers: {root_cause(error)}"
            then = "start that engine, or name another one with --engine URL"
            if address.startswith("ssh://"):
                then = f"make `docker -H {address} version` work, without a question for a password"
            raise failed(f"{source}: {address}", cause, then) from None
    rootless = [Path(folder) for folder in [os.environ.get("XDG_RUNTIME_DIR")] if folder]
    sockets = [Path("/var/run/docker.sock"), *(folder / "docker.sock" for folder in rootless)]
    sockets.append(private_home() / "docker.sock")
    tried = []
    for path in sockets:
        try:
            return Engine(base_url=f"unix://{path}")
        except _UNREACHABLE as error:
            tried.append(f"{path}: {root_cause(error)}")
    then = (
        f"`{command('engine', 'start')}` installs and starts one (Debian, as root); elsewhere install Docker and "
        "`systemctl start docker`; or name another machine's: --engine ssh://HOST"
    )
    raise NoEngine(
        Problem(where="Docker Engine", cause=f"none answers ({'; '.join(tried)})", then=then),
        code=1,
    )


def private_home() -> Path:
    """The folder of the private engine: its data, its log, its socket docker.sock."""
    return cache.folder() / "engine"


def _named_engine(url: str | None) -> tuple[str, str, TLSConfig | bool] | None:
    """Who named an engine, its address, and how it is reached; None: nobody did."""
    of_environment = kwargs_from_env()
    tls = of_environment.get("tls", False)
    if url:
        return "--engine", url, tls
    if os.environ.get("DOCKER_HOST"):
        return "DOCKER_HOST", of_environment["base_url"], tls
    try:
        context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT"))
    except Exception as error:  # the SDK lets every parse error of the context store through
        raise wrong(
            "docker context", f"can't be read: {error}", "`docker context use default`"
        ) from None
    if context is None:
        raise wrong("docker context", "the current context does not exist", "`docker context ls`")
    if context.name == "default" or not context.Host:
        return None
    return f"docker context {context.name}", context.Host, context.TLSConfig or False
