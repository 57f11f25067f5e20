"""Images between the engine and registries: pull, push, and the digest that a registry has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import docker.errors
from docker.utils import parse_repository_tag

from images.engine.buildkit import BuildEvent, LayerPulled, LogLine, StepFinished, StepProgress, StepStarted
from images.engine.docker_api import UNREACHABLE, DockerApi
from images.engine.docker_types import Message
from images.engine.failures import EngineError, EngineErrorKind, engine_error_kind
from images.engine.responses import asking
from images.engine.specs import PLATFORM
from images.errors import Problem

OnEvent = Callable[[BuildEvent], None]

_PULL_HINT = "check the name and that its registry can be reached; `docker login` where it asks for a password"
_PUSH_HINT = "does the registry run, and may you write there? `docker login HOST`, then give the command again"


def digest(api: DockerApi, ref: str, timeout: float) -> str | None:
    """The digest a registry has for `ref`; None when no registry answered. Raises EngineError where it refuses."""
    try:
        return api.registry_digest(ref, timeout)
    except docker.errors.APIError as error:
        reason = str(error.explanation or error)
        kind = engine_error_kind(reason)
        if not kind.is_refusal:
            return None
        problem = Problem(
            where=ref, cause=f"the registry refuses it: {reason}", then="check the name, or `docker login`"
        )
        raise EngineError(problem, kind) from None
    except UNREACHABLE:
        return None


def pull(api: DockerApi, ref: str, on_event: OnEvent, platform: str = PLATFORM) -> None:
    """Fetch an image from its registry. Raises EngineError with the registry's words."""
    repository, tag = parse_repository_tag(ref)
    name = f"pulling {ref}"
    with _step(ref, name, on_event), asking(ref, then=_PULL_HINT):
        for message in api.sdk.pull(repository, tag or "latest", stream=True, decode=True, platform=platform):
            if "error" in message:
                raise _failed(ref, f"can't be pulled: {message['error']}", _PULL_HINT)
            if event := transfer_event(ref, name, message):
                on_event(event)


def push(api: DockerApi, ref: str, on_event: OnEvent) -> None:
    """Send an image to its registry, once. Raises NoSuchImage, EngineError with the registry's words."""
    repository, tag = parse_repository_tag(ref)
    name = f"pushing {ref}"
    with (
        _step(ref, name, on_event),
        asking(ref, image=ref, then=_PUSH_HINT),
        api.push(ref, repository, tag or "latest") as messages,
    ):
        for message in messages:
            if "error" in message:
                raise _failed(ref, f"can't be pushed: {message['error']}", _PUSH_HINT)
            if event := transfer_event(ref, name, message):
                on_event(event)


def is_transient(error: EngineError) -> bool:
    """Whether the same push may succeed a moment later: no registry refused it, and there is an image to send."""
    return not error.kind.is_refusal and error.kind is not EngineErrorKind.NO_SUCH_IMAGE


def transfer_event(ref: str, name: str, message: Message) -> BuildEvent | None:
    """The event that a message of a pull or a push amounts to. `ref` is the step's key, `name` its name."""
    detail = message.get("progressDetail") or {}
    status = message.get("status", "")
    if "current" in detail:
        what = f"{status} {message.get('id', '')}".strip()
        return StepProgress(step=ref, name=name, what=what, current=detail["current"], total=detail.get("total", 0))
    if status == "Pull complete":  # the last word on a layer; the engine may leave out those before it
        return LayerPulled(step=ref, layer=message["id"])
    return LogLine(step=ref, name=name, text=status) if status.startswith(("Status:", "Digest:")) else None


@contextmanager
def _step(ref: str, name: str, on_event: OnEvent) -> Iterator[None]:
    start = time.monotonic()
    on_event(StepStarted(step=ref, name=name))
    yield
    on_event(StepFinished(step=ref, name=name, seconds=time.monotonic() - start, cached=False))


def _failed(ref: str, cause: str, then: str) -> EngineError:
    return EngineError(Problem(where=ref, cause=cause, then=then), engine_error_kind(cause))
