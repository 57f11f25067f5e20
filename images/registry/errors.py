"""Turn the errors of a registry into messages that say what to do next."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests

from images.errors import Problem, UserError
from images.registry.reference import Repository

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which another attempt may succeed."""
_NEXT: Mapping[int, str] = {
    HTTPStatus.NOT_FOUND: "check the name; some registries (Amazon ECR) want a repository made "
    "before the first push",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "a proxy before the registry limits uploads: "
    "raise its limit (nginx: `client_max_body_size 0`)",
    HTTPStatus.TOO_MANY_REQUESTS: "wait until the registry takes requests again (some minutes, or "
    "hours for Docker Hub without a login), then give the command again",
}
"""HTTP status -> what the user can do, other than to try again."""


class RegistryError(UserError):
    """A request to a registry failed. `status` is that of HTTP, 0 where no answer came."""

    def __init__(self, problem: Problem, status: int = 0) -> None:
        super().__init__(problem, code=1)
        self.status = status


class TransientError(RegistryError):
    """A request failed, and a later attempt may succeed."""

    retry_after = ""
    """The registry's header `Retry-After`: when to try again; empty if it does not say."""


class Stopped(Exception):  # noqa: N818  # not an error of anyone's
    """A request was not repeated because `Registry.stopping` was set elsewhere."""


def problem(repository: Repository, cause: str, status: int = 0) -> Problem:
    """Return a problem with a repository and, by the HTTP status, what the user can do about it."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        then = (
            f"`docker login {repository.host}`, with an account that may read there, or, to "
            "publish, write"
        )
    else:
        then = _NEXT.get(status, "see whether the registry runs, then give the command again later")
    return Problem(where=str(repository), cause=cause, then=then)


def refusal(repository: Repository, answer: requests.Response, prefix: str = "") -> RegistryError:
    """Return the error for an HTTP answer that is not OK, with the registry's own message.

    It is a TransientError if a later attempt may succeed. `prefix` is put before the message; it
    says what failed, such as `no token: `.
    """
    status = answer.status_code
    # If the registry gives no message, take HTTP's words for the status: `Not Found`.
    message = error_message(answer) or answer.reason or ""
    cause = f"{prefix}the registry says: HTTP {status} {message}".strip()
    if status not in _TRANSIENT:
        return RegistryError(problem(repository, cause, status), status)
    error = TransientError(problem(repository, cause), status)
    error.retry_after = answer.headers.get("Retry-After", "")
    return error


def error_message(answer: requests.Response) -> str:
    """Return the errors in an answer as `CODE: message; CODE: message`; empty if it has none."""
    messages = []
    try:
        for error in answer.json()["errors"]:
            text = f"{error.get('code', '')}: {error.get('message', '')}"
            messages.append(text.strip(": "))
    except (ValueError, LookupError, TypeError, AttributeError):
        # A proxy answers with HTML, say.
        return ""
    return "; ".join(messages)


def json_object(answer: requests.Response) -> dict[str, Any]:
    """Return the JSON object in an answer. Raises RegistryError for anything else."""
    try:
        data = answer.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        where = urlsplit(answer.url).netloc
        cause = "the server's answer is not a JSON object"
        then = "check the address: it may be no registry, or a proxy answered instead"
        raise RegistryError(Problem(where=where, cause=cause, then=then))
    return data
