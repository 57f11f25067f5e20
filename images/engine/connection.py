"""Which engine to work with, and whether it can do what we need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from docker.context import ContextAPI
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env

from images.engine.client import Engine
from images.engine.docker_api import UNREACHABLE
from images.engine.responses import root_cause
from images.errors import Problem, UserError
from images.host import cache


def connect(url: str | None = None, *, builds: bool = True) -> Engine:
    """The engine to work with: `url`, else DOCKER_HOST, else Docker's current context, else a socket that answers.

    Sockets tried: the default one, the rootless one, then our private engine's; where nothing is built (`builds`), at
    last Podman's. An engine that was named but does not answer is an error, never a reason to take another one. Raises
    UserError, `NoEngine` when none answers at all.
    """
    if named := _named_engine(url):
        try:
            return Engine(named.url, named.tls, builds=builds)
        except UNREACHABLE as error:
            raise UserError(
                Problem(
                    where=f"{named.source}: {named.url}",
                    cause=f"no Docker Engine answers: {root_cause(error)}",
                    then="start that engine, or name another one with --engine URL",
                ),
                code=1,
            ) from None
    tried = []
    for path in (*default_sockets(), *(() if builds else podman_sockets())):
        try:
            return Engine(base_url=f"unix://{path}", builds=builds)
        except UNREACHABLE as error:
            tried.append(f"{path}: {root_cause(error)}")
    raise NoEngine(tried)


class NoEngine(UserError):  # noqa: N818  # said as an event
    """No engine was named and none answers on the usual sockets."""

    def __init__(self, tried: Sequence[str]) -> None:
        super().__init__(
            Problem(
                where="Docker Engine",
                cause="none answers (" + "; ".join(tried) + ")",
                then="`nox -s engine -- start` installs and starts one (Debian, as root); elsewhere install Docker and "
                "`systemctl start docker`; or name another machine's: --engine ssh://HOST",
            ),
            code=1,
        )


def default_sockets() -> tuple[Path, ...]:
    """Where an engine listens when nobody says otherwise, in the order they are tried."""
    rootless = os.environ.get("XDG_RUNTIME_DIR")
    return (
        Path("/var/run/docker.sock"),
        *((Path(rootless) / "docker.sock",) if rootless else ()),
        private_socket(),
    )


def podman_sockets() -> tuple[Path, ...]:
    """Where Podman listens (`systemctl --user start podman.socket`): a user's own, then the machine's."""
    rootless = os.environ.get("XDG_RUNTIME_DIR")
    own = (Path(rootless) / "podman" / "podman.sock",) if rootless else ()
    return (*own, Path("/run/podman/podman.sock"))


def private_home() -> Path:
    """The folder of the private engine: its data, its log, its socket."""
    return cache.folder() / "engine"


def private_socket() -> Path:
    return private_home() / "docker.sock"


@dataclass(frozen=True)
class _Named:
    """An engine that somebody named, and where."""

    source: str
    url: str
    tls: TLSConfig | bool = False


def _named_engine(url: str | None) -> _Named | None:
    of_environment = kwargs_from_env()
    tls = of_environment.get("tls", False)
    if url:
        return _Named("--engine", url, tls)
    if os.environ.get("DOCKER_HOST"):
        return _Named("DOCKER_HOST", of_environment["base_url"], tls)
    try:
        context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT"))
    except Exception as error:  # the SDK lets every parse error of the context store through
        raise UserError(
            Problem(where="docker context", cause=f"can't be read: {error}", then="`docker context use default`")
        ) from None
    if context is None:
        raise UserError(
            Problem(where="docker context", cause="the current context does not exist", then="`docker context ls`")
        )
    if context.name == "default" or not context.Host:
        return None
    return _Named(f"docker context {context.name}", context.Host, context.TLSConfig or False)
