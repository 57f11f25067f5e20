"""One build by BuildKit's stream: the engine's messages into events, a result or a failure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator

from images.engine.archive import Files
from images.engine.buildkit import BuildEvent, Trace
from images.engine.docker_api import DockerApi
from images.engine.docker_types import Message
from images.engine.failures import BuildFailed
from images.engine.responses import asking
from images.engine.specs import BuildSpec
from images.errors import Problem, UserError

DOCKERFILE = "Dockerfile"


def build_once(
    api: DockerApi, files: Files, spec: BuildSpec, build_id: str, trace: Trace, on_event: Callable[[BuildEvent], None]
) -> str:
    """Build a context, without a retry. Returns the image's ID; `trace` remembers the steps.

    Raises BuildFailed, UserError when the engine refuses or goes away.
    """
    with asking("build"), api.build(files, _parameters(spec, build_id)) as messages:
        return _image_id(messages, trace, on_event)


def transient(error: Exception) -> str:
    """The cause of a failed build that may succeed when it is repeated; empty for any other error."""
    if not isinstance(error, BuildFailed) or not error.failure.retryable:
        return ""
    return error.failure.line or error.failure.cause


def _parameters(spec: BuildSpec, build_id: str) -> dict[str, str]:
    return {
        "version": "2",  # BuildKit
        "buildid": build_id,
        "dockerfile": DOCKERFILE,
        "labels": json.dumps(dict(spec.labels)),
        "platform": spec.platform,
        **({"networkmode": spec.network_mode} if spec.network_mode else {}),
        **({"target": spec.target} if spec.target else {}),
        **({"nocache": "1"} if spec.no_cache else {}),
    }


def _image_id(messages: Iterator[Message], trace: Trace, on_event: Callable[[BuildEvent], None]) -> str:
    """The image ID at the end of the stream. Raises BuildFailed, or UserError when the stream breaks off."""
    image_id = ""
    for message in messages:
        if "errorDetail" in message or "error" in message:
            error = str(message.get("errorDetail", {}).get("message") or message.get("error"))
            step, cause, log = trace.failed() or ("build", error, ())
            raise BuildFailed(step=step, error=f"{error}\n{cause}", log=log)
        if message.get("id") == "moby.buildkit.trace":
            for event in trace.feed(_decoded(message["aux"])):
                on_event(event)
        elif message.get("id") == "moby.image.id":
            image_id = message["aux"]["ID"]
    if not image_id:
        raise UserError(
            Problem(
                where="build",
                cause="the engine ended the build without an image and without an error",
                then="is the engine still running (`docker info`)? its log tells more",
            ),
            code=1,
        )
    return image_id


def _decoded(aux: str) -> bytes:
    try:
        return base64.b64decode(aux, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not a BuildKit report: {error}") from error
