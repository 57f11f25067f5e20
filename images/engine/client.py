"""The connection to a Docker Engine, with all that we ask of it, and the choice of the engine.

The Docker SDK reaches an engine by a local socket, by TCP with TLS, or by SSH. Its own methods for
builds and registries hide what we need: BuildKit's messages, the headers with credentials, the
words of a registry. So this module uses what the SDK keeps private, and no other module does.
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import docker
import docker.errors
import requests
from docker import auth
from docker.context import ContextAPI
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env, parse_repository_tag

from images.engine import configuration, containerd_store, containers
from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import BuildEvent, BuildResult, LogLine, Trace
from images.engine.containers import OWNER_LABEL, RUN_LABEL, Container, engine_errors
from images.engine.failures import (
    BuildFailed,
    Cancelled,
    EngineError,
    EngineErrorKind,
    NoSuchImage,
    engine_error_kind,
)
from images.engine.identity import ImageIdentity, platform_of_image
from images.engine.runtime import PLATFORM, ContainerSpec, ImageInfo, Work, engine_facts, image_info
from images.errors import Problem, UserError, command, failed, root_cause, wrong
from images.host import cache
from images.host.hashing import sha256

if TYPE_CHECKING:
    from images.engine.exported import ImagePart

OnEvent = Callable[[BuildEvent], None]

_UNREACHABLE = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
"""What the SDK raises if an engine does not answer."""
_TIMEOUT = 120.0  # seconds of silence after which a request that has nothing long to do fails
_TAR = {"Content-Type": "application/x-tar"}
_ATTEMPTS = 3
_BACKOFF = 5.0  # seconds before the second attempt; doubled before each further one
_RETRIED_FAILURES = ("network", "engine")
"""Kinds of failures (images/data/build_failures.yaml) that may be gone at the next attempt."""
WITHOUT_UNPACKING = json.dumps(
    [
        {
            "Type": "image",
            "Attrs": {"unpack": "false", "dangling-name-prefix": "moby-dangling"},
        }
    ]
)
"""The exporter of BuildKit that writes an image without a name (moby/buildkit,
exporter/containerimage/exptypes/keys.go). The prefix is the engine's own."""
_PULL_HINT = (
    "check the name and that its registry can be reached; `docker login` where it asks for a "
    "password"
)
_SSH = "ssh://"
_SSH_PORT = "22"


def ignore(_: BuildEvent) -> None:
    """Do nothing with an event."""


class Engine(AbstractContextManager["Engine"]):
    """A connection to one Docker Engine. Thread safe; use it as a context manager."""

    def __init__(self, base_url: str, tls: TLSConfig | bool = False) -> None:
        """Connect to the engine at `base_url`.

        Raises UserError if it is no Docker Engine for Linux containers, and errors of the SDK or
        the system if it does not answer.
        """
        # Any: the published types of the SDK lack most of its parameters.
        self.sdk: Any = docker.APIClient(
            base_url=_with_ssh_port(base_url),
            tls=tls,
            version="auto",
            timeout=cast(int, _TIMEOUT),  # the SDK's types say int, but it takes a float
            max_pool_size=64,
            # The user's own ssh, with its configuration, keys and agent.
            use_ssh_client=base_url.startswith(_SSH),
        )
        self.run_id = uuid.uuid4().hex[:12]
        self.facts = engine_facts(base_url, self.sdk.version(), self.sdk.info())
        self._work = Work()

    def __exit__(self, *_: object) -> None:
        self.sdk.close()

    # --- work that can be cancelled ---------------------------------------------------------------

    def cancel(self) -> None:
        """Stop all builds and containers of this connection; whoever waits for one gets Cancelled.

        Any thread may call it.
        """
        self._work.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called: what fails from then on was stopped."""
        return self._work.cancelled.is_set()

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

        # Machines may share a home, and with it the folder of locks, so the lock's name has the
        # machine and the engine.
        place = self.facts.data_root if self.facts.local else self.facts.url
        key = f"{socket.gethostname()}\n{place}\n{work}"
        file = cache.folder() / "locks" / f"{sha256(key.encode())[:16]}.lock"
        with cache.hold_lock(file, on_wait=on_wait, pause=pause):
            yield

    def build(
        self,
        files: Files,
        tag: str | None,
        *,
        network: str | None = None,
        no_cache: bool = False,
        unpack: bool = True,
        platform: str = PLATFORM,
        on_event: OnEvent = ignore,
        redact: Callable[[str], str] = str,
        sleep: Callable[[float], object] | None = None,
    ) -> BuildResult:
        """Build an image with BuildKit, and tag it.

        files: the build context: path -> content.
        network: that of the build steps; None: the engine's default.
        unpack: whether to make the image ready for containers. Only the containerd image store can
            leave that out. It saves a minute for an image that `fix_id` writes anew.
        on_event: called with each step, and with each line that it prints.
        redact: takes secrets out of what steps print.
        sleep: called with the seconds of a pause. If the network fails, or the engine loses the
            context, the build is tried twice more after pauses.

        Raises BuildFailed, Cancelled (see `cancel`), and UserError if the engine refuses or goes
        away. With any exception, the build is cancelled in the engine.
        """
        parameters = {
            "version": "2",  # BuildKit
            "dockerfile": "Dockerfile",
            "platform": platform,
            "networkmode": network,
            "nocache": "1" if no_cache else None,
        }
        if self.facts.containerd_images and not unpack:
            parameters["outputs"] = WITHOUT_UNPACKING
        headers = {**_TAR, **self._registry_credentials()}

        start = time.monotonic()
        for attempt in itertools.count(1):
            trace = Trace(redact)
            try:
                image_id = self._build_once(files, parameters, headers, trace, on_event)
                break
            except BuildFailed as error:
                # No limit of time: a step may be silent as long as it likes. Its error decides.
                if error.failure.kind not in _RETRIED_FAILURES or attempt == _ATTEMPTS:
                    raise
                delay = _BACKOFF * 2 ** (attempt - 1)
                next_attempt = f"attempt {attempt + 1} of {_ATTEMPTS} in {delay:g} s"
                text = f"{error.failure.cause} ({error.failure.line}); {next_attempt}"
                on_event(LogLine(step="", name="", text=text))
                wait = sleep or self._work.cancelled.wait
                wait(delay)

        # Only a finished build gets the tag: an interrupted one must not leave it.
        if tag:
            self.tag(image_id, tag)
        return BuildResult(image_id=image_id, steps=trace.steps(), seconds=time.monotonic() - start)

    def _registry_credentials(self) -> dict[str, str]:
        """Return the header with what `docker login` stored for all registries; none if nothing."""
        credentials = self.sdk._auth_configs.get_all_credentials()
        if not credentials:
            return {}
        return {"X-Registry-Config": auth.encode_header(credentials).decode()}

    def _build_once(
        self,
        files: Files,
        parameters: Mapping[str, str | None],
        headers: Mapping[str, str],
        trace: Trace,
        on_event: OnEvent,
    ) -> str:
        """Make one attempt at a build, and return the ID of the image.

        `files` are the build context, `parameters` and `headers` those of the request to BuildKit.
        `trace` decodes the engine's answer, and `on_event` gets its events: steps and log lines. If
        this process is interrupted meanwhile, the engine is told to cancel the build. Raises
        BuildFailed if a step failed, EngineError if the engine did.
        """
        build_id = uuid.uuid4().hex
        cancel_build = partial(self._cancel_build, build_id)
        parameters = {**parameters, "buildid": build_id}
        with (
            # `cancel_build` is called if this block fails, or if somebody calls `cancel` meanwhile;
            # not for a build that has succeeded (always=False).
            self._work.registered(cancel_build, always=False),
            engine_errors("build"),
            self._send(files, "/build", parameters, headers) as messages,
        ):
            return trace.read_image_id(messages, on_event)

    def _cancel_build(self, build_id: str) -> None:
        """Tell the engine to cancel a build.

        Errors are ignored: the connection is closed by now, and that cancels the build as well.
        """
        with suppress(*_UNREACHABLE):
            self.sdk._post(self.sdk._url("/build/cancel"), params={"id": build_id}, timeout=10)

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[Container]:
        """Create a container without starting it, and remove it with its volumes at the end.

        Raises NoSuchImage, EngineError, and Cancelled (see `cancel`).
        """
        labels = {RUN_LABEL: self.run_id, OWNER_LABEL: containers.process_identity(os.getpid())}
        container_id = containers.create(self.sdk, spec, labels)
        remove = partial(containers.remove, self.sdk, container_id)
        with self._work.registered(remove, always=True):
            yield Container(self.sdk, container_id, spec.name or spec.image)

    def sweep(self) -> tuple[str, ...]:
        """Remove containers that killed runs of this machine left behind, with their volumes.

        Returns their names. Raises EngineError.
        """
        return containers.sweep(self.sdk)

    # --- images that the engine has ---------------------------------------------------------------

    def inspect(self, ref: str) -> ImageInfo:
        """Return what the engine knows of an image: its digests, size, layers and settings.

        `ref` is a name, an ID, NAME@DIGEST, or the digest of the image's configuration. Raises
        NoSuchImage if the engine has no such image, and EngineError if it can't be asked.
        """
        try:
            data = self.inspect_raw(ref)
        # The engine itself does not find an image of the containerd store by its configuration.
        except NoSuchImage:
            info = self._find_by_configuration(ref)
            if info is None:
                raise
            return info

        # In the classic image store, the ID of an image is the digest of its configuration.
        if not self.facts.containerd_images:
            platform = platform_of_image(data)
            return image_info(data, ImageIdentity(configuration=data["Id"], platform=platform))

        # The size that containerd's store gives is that of the compressed layers, and more once the
        # image was used. The sizes of its steps add up to what the classic store gives.
        info = image_info(data, containerd_store.identify(self, data))
        size = sum(step_size for _step, step_size in self.history(info.handle))
        return replace(info, size=size)

    def _find_by_configuration(self, digest: str) -> ImageInfo | None:
        """Return the image of the containerd image store whose configuration has this digest.

        None if there is none, if `digest` is no digest, or if the engine has the classic store,
        where the engine itself finds an image by this digest. Raises EngineError if the images
        can't be listed.
        """
        if not self.facts.containerd_images or not digest.startswith("sha256:"):
            return None
        with engine_errors(digest):
            handles = [image["Id"] for image in self.sdk.images()]
        # Each only once (a dict keeps the order).
        for handle in dict.fromkeys(handles):
            # An image of which content is missing is not what is looked for.
            with suppress(EngineError):
                info = self.inspect(handle)
                if info.digest == digest:
                    return info
        return None

    def inspect_raw(self, ref: str) -> Mapping[str, Any]:
        """Return the engine's whole answer about an image. Raises NoSuchImage, EngineError."""
        with engine_errors(ref, image=ref):
            inspected = cast("Mapping[str, Any]", self.sdk.inspect_image(ref))
        if self.facts.containerd_images:
            return containerd_store.add_missing_configuration(self.facts, inspected)
        return inspected

    def find(self, ref: str) -> ImageInfo | None:
        """Return an image as `inspect` does; None if the engine lacks it. Raises EngineError."""
        try:
            return self.inspect(ref)
        except NoSuchImage:
            return None

    def history(self, ref: str) -> list[tuple[str, int]]:
        """Return the build steps of an image, and the bytes that each added. The last comes first.

        Raises NoSuchImage, EngineError.
        """
        with engine_errors(ref, image=ref):
            return [(step["CreatedBy"], step["Size"]) for step in self.sdk.history(ref)]

    def steps(self, ref: str) -> list[str]:
        """Return the build steps of an image, its base's included. The first comes first.

        Raises NoSuchImage, EngineError.
        """
        return [step for step, _size in reversed(self.history(ref))]

    def tag(self, source: str, name: str) -> None:
        """Give an image one more name (`repository:tag`); another image of this name loses it.

        Raises NoSuchImage, EngineError.
        """
        repository, tag = parse_repository_tag(name)
        with engine_errors(source, image=source):
            self.sdk.tag(source, repository, tag or "latest", force=True)

    def remove(self, ref: str, *, force: bool = False) -> None:
        """Take a name from an image, and delete the image if that was its last one.

        Does nothing if there is no such image. Raises EngineError.
        """
        with suppress(NoSuchImage), engine_errors(ref, image=ref):
            self.sdk.remove_image(ref, force=force)

    untag = remove

    def exported(self, ref: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
        """Yield each file of an image's export (`docker save`): configuration, manifests, layers.

        Yields the file's entry in the export's tar, with its name and size, and a stream of its
        content, which must be read before the next file is asked for. Raises NoSuchImage,
        EngineError.
        """
        with engine_errors(ref, image=ref):
            # No limit of time: the classic store first writes the whole export to its disk.
            answer = self.sdk._get(self.sdk._url("/images/{0}/get", ref), stream=True, timeout=None)
            self.sdk._raise_for_status(answer)
            stream = cast("IO[bytes]", ChunkReader(answer.iter_content(1 << 21)))
            with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as export:
                for member in export:
                    content = export.extractfile(member) if member.isfile() else None
                    if content:
                        yield member, content

    def parts(self, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        """Yield the configuration of an image, and its layers whose diff IDs are in `wanted`.

        See `exported.parts`. Raises NoSuchImage, EngineError.
        """
        from images.engine import exported  # it imports this module

        return exported.parts(self, info, wanted)

    # --- images that come from elsewhere ----------------------------------------------------------

    def load(self, files: Files, name: str) -> ImageInfo:
        """Load an image from files as `docker save` writes them, and return what the engine has.

        `files` (path -> content) holds the image's configuration, those of its layers that the
        engine lacks, and a manifest that gives the image this `name`. The image's digest follows
        from these bytes alone; `docker import` would put the time into it. Raises UserError if the
        engine can't load it.
        """
        with (
            engine_errors(name),
            self._send(files, "/images/load", {"quiet": "1"}, _TAR) as messages,
        ):
            for message in messages:
                if "error" in message:
                    cause = f"the engine can't load it: {message['error']}"
                    then = (
                        "see whether the engine's disk is full (`docker system df`), then give the "
                        "command again"
                    )
                    raise failed(name, cause, then)
        return self.inspect(name)

    @contextmanager
    def _send(
        self,
        files: Files,
        path: str,
        parameters: Mapping[str, str | None],
        headers: Mapping[str, str],
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Post files as a tar to a path of the engine's API, and yield an iterator of its answer.

        The answer is a stream of JSON messages. They can be read only within the `with` block, as
        the connection is closed at its end. `parameters` are those of the URL. Raises the SDK's
        errors; callers put `engine_errors` around it. There is no limit of time: the engine may be
        silent as long as it likes.
        """
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

    def fix_id(self, image_id: str, name: str) -> ImageInfo:
        """Give a built image a digest that is the same wherever it is built, and name it.

        For that, its configuration is written anew, without the time of the build and what only
        some engines write; the new image gets the name and is returned. If the configuration can't
        be written so (see `configuration.canonical_bytes`), the image keeps its own. On the
        containerd image store, the image is also unpacked. Raises UserError.

        `image_id` is what the build returned, `name` is REPOSITORY or REPOSITORY:TAG.
        """
        built = self.inspect_raw(image_id)
        config = configuration.canonical_bytes(built, self.steps(image_id))
        repository, tag = parse_repository_tag(name)
        full_name = f"{repository}:{tag or 'latest'}"
        # An archive to load needs no layers: the engine has them.
        if self.facts.containerd_images:
            # Without a new configuration, loading still gives the image its name and unpacks it.
            manifest = containerd_store.read_manifest(self, built)
            files = configuration.oci_layout(config, manifest, full_name)
        elif config is not None:
            files = configuration.docker_archive(config, built["RootFS"]["Layers"], full_name)
        else:
            # The classic store has nothing to unpack, and the build has named the image.
            return self.inspect(image_id)
        info = self.load(files, name)

        # Remove the image as it was built, unless somebody gave it a name.
        as_built = self.find(image_id)
        if as_built and as_built.handle != info.handle and not as_built.tags:
            # It can't be removed while a container of an earlier build uses it.
            with suppress(EngineError):
                self.remove(image_id)
        # In the containerd image store, layers that were unpacked for the built image went with it.
        # Loading the new one again unpacks them; until then, the sizes of its steps are 0.
        if self.facts.containerd_images and not self.inspect(name).size:
            info = self.load(files, name)
        return info

    def registry_digest(self, ref: str, timeout: float = 20) -> str | None:
        """Return the digest (`sha256:...`) that a registry has for an image at the moment.

        The engine asks the registry; this is the SDK's `inspect_distribution` with a time limit.
        None if no registry answers within `timeout` seconds. Raises EngineError if the registry
        says that there is no such image, or that we may not have it.
        """
        registry, _ = auth.resolve_repository_name(ref.split("@")[0])
        credentials = auth.get_config_header(self.sdk, registry)  # from `docker login`
        headers = {"X-Registry-Auth": credentials.decode()} if credentials else {}
        try:
            url = self.sdk._url("/distribution/{0}/json", ref)
            answer = self.sdk._get(url, headers=headers, timeout=timeout)
            self.sdk._raise_for_status(answer)
            return str(answer.json()["Descriptor"]["digest"])
        except docker.errors.APIError as error:
            reason = str(error.explanation or error)
            kind = engine_error_kind(reason)
            # Anything else, such as a name that is not resolved, is no answer of a registry.
            if kind not in (EngineErrorKind.REGISTRY_REFUSAL, EngineErrorKind.BAD_REFERENCE):
                return None
            cause = f"the registry refuses it: {reason}"
            problem = Problem(where=ref, cause=cause, then=_PULL_HINT)
            raise EngineError(problem, kind) from None
        except _UNREACHABLE:
            return None

    def pull(self, ref: str, *, platform: str = PLATFORM) -> ImageInfo:
        """Pull an image (`NAME:TAG` or `NAME@DIGEST`) from its registry, and return its facts.

        `platform`: which of its images, such as `linux/amd64`. Raises EngineError with the
        registry's words if it can't be pulled.
        """
        repository, tag = parse_repository_tag(ref)
        with engine_errors(ref, then=_PULL_HINT):
            messages = self.sdk.pull(
                repository, tag or "latest", stream=True, decode=True, platform=platform
            )
            # Progress is not shown. An error in the middle comes as a message, not as a status.
            for message in messages:
                if "error" in message:
                    cause = f"can't be pulled: {message['error']}"
                    problem = Problem(where=ref, cause=cause, then=_PULL_HINT)
                    raise EngineError(problem, engine_error_kind(cause))
        return self.inspect(ref)


def _with_ssh_port(url: str) -> str:
    """Add the port to an engine's address `ssh://HOST` that has none: `ssh://HOST:2222`.

    It is the port that ~/.ssh/config has for the host, or else 22. Docker's SDK would always take
    22. Other addresses are returned as they are. So are all if ssh is not installed.
    """
    host = url.removeprefix(_SSH)
    # If `host` is the whole address, it does not begin with `ssh://`. A colon is before a port.
    if host == url or ":" in host or not shutil.which("ssh"):
        return url
    # `ssh -G` prints the settings for a host, one a line: `port 2222`.
    answer = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, check=False)
    for line in answer.stdout.splitlines():
        if line.startswith("port "):
            return f"{url}:{line.removeprefix('port ')}"
    return f"{url}:{_SSH_PORT}"


# --- which engine ---------------------------------------------------------------------------------


class NoEngine(UserError):  # noqa: N818  # said as an event
    """No engine was named, and none answers on the usual sockets."""


class _NamedEngine(NamedTuple):
    """An engine that the user named."""

    source: str
    """Where: an option, a variable or a docker context."""
    address: str
    tls: TLSConfig | bool


def connect(url: str | None = None) -> Engine:
    """Connect to the engine that the user named, else to one that answers on a usual socket.

    An engine is named by `url`, by DOCKER_HOST or by docker's current context, in this order. If it
    does not answer, that is an error, and no other engine is taken. The usual sockets are the
    default one, that of rootless Docker, and that of our private engine. Raises UserError, and
    NoEngine if none was named and none answers.
    """
    named = _named_engine(url)
    if named:
        return _connect_to(named)

    sockets = [Path("/var/run/docker.sock")]
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR")
    if runtime_folder:
        sockets.append(Path(runtime_folder) / "docker.sock")
    sockets.append(private_home() / "docker.sock")
    errors = []
    for path in sockets:
        try:
            return Engine(base_url=f"unix://{path}")
        except _UNREACHABLE as error:
            errors.append(f"{path}: {root_cause(error)}")
    then = (
        f"as root on Debian, `{command('engine', 'start')}` installs and starts one; on another "
        "system, install Docker and `sudo systemctl start docker`; without root, name another "
        "machine's engine (--engine ssh://HOST)"
    )
    cause = f"none answers ({'; '.join(errors)})"
    if "ermission denied" in cause:
        then = (
            "give the command as root, or join the group `docker` (`sudo usermod -aG docker $USER`)"
        )
    raise NoEngine(Problem(where="Docker Engine", cause=cause, then=then), code=1)


def _connect_to(named: _NamedEngine) -> Engine:
    """Connect to an engine that the user named, with an option, a variable or a docker context.

    Raises UserError, with advice for this kind of address, if it does not answer.
    """
    address = named.address
    try:
        return Engine(address, named.tls)
    # ValueError: Python can't read the address.
    except (*_UNREACHABLE, ValueError) as error:
        cause = f"no Docker Engine answers: {root_cause(error)}"
        then = (
            "start that engine (`docker info` shows whether it runs), or give --engine another "
            "URL: unix:///PATH, tcp://HOST:PORT or ssh://HOST"
        )
        if named.source == "DOCKER_HOST":
            then += "; or `unset DOCKER_HOST`, which leaves the choice to truetag"
        if isinstance(error, ValueError):
            then = "write the address as unix:///PATH, tcp://HOST:PORT or ssh://HOST"
        if address.startswith("/"):
            then = f"write it as unix://{address}"
        if address.startswith(_SSH):
            then = (
                f"make `docker -H {address} version` work without a question for a password, then "
                "give the command again"
            )
        raise failed(f"{named.source}: {address}", cause, then) from None


def private_home() -> Path:
    """Return the folder of the private engine: its data, its log, its socket docker.sock."""
    return cache.folder() / "engine"


def _named_engine(url: str | None) -> _NamedEngine | None:
    """Return the engine that the user named; None if none was named, so the usual sockets count.

    The first counts of: `url` (the option --engine), DOCKER_HOST, docker's current context. Raises
    UserError if docker's current context can't be read or does not exist.
    """
    # The SDK's reading of DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH.
    settings = kwargs_from_env()
    tls = settings.get("tls", False)
    if url:
        return _NamedEngine("--engine", url, tls)
    if os.environ.get("DOCKER_HOST"):
        return _NamedEngine("DOCKER_HOST", settings["base_url"], tls)
    try:
        context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT"))
    # The SDK lets every error of a parser through.
    except Exception as error:
        cause = f"docker's current context can't be read: {error}"
        then = "`docker context use default`, or name the engine with --engine URL"
        raise wrong("docker context", cause, then) from None
    if context is None:
        then = (
            "`docker context ls` lists those that exist; `docker context use NAME` chooses one, "
            "unless DOCKER_CONTEXT names another"
        )
        raise wrong("docker context", "the current context does not exist", then)
    # The default context stands for the usual sockets.
    if context.name == "default" or not context.Host:
        return None
    source = f"docker context {context.name}"
    return _NamedEngine(source, context.Host, context.TLSConfig or False)
