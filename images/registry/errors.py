"""Refusals of a registry, as problems that a person can act on."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests

from images.errors import Problem, UserError
from images.registry.reference import Repository

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_NEXT: Mapping[int, str] = {
    HTTPStatus.NOT_FOUND: "check the name; some registries (Amazon ECR) want a repository made before the first push",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "a proxy before the registry limits uploads: raise its limit"
    " (nginx: `client_max_body_size 0`)",
}
"""Status -> what to do, where it is not to try again."""


class RegistryError(UserError):
    """A registry's refusal. `status` is HTTP's, 0 where no answer came."""

    def __init__(self, problem: Problem, status: int = 0) -> None:
        super().__init__(problem, code=1)
        self.status = status


class TransientError(RegistryError):
    """A failure that a later attempt may not meet. `retry_after`: the registry's header, which may be empty."""

    retry_after = ""


class Stopped(Exception):  # noqa: N818  # not an error of anyone's
    """A request was not repeated because `Registry.stopping` was set elsewhere."""


def problem(repository: Repository, cause: str, status: int = 0) -> Problem:
    """What went wrong with a repository, and what to do next. `status` is HTTP's."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        then = f"`docker login {repository.host}`, with an account that may write there"
    else:
        then = _NEXT.get(status, "does the registry run? try again later")
    return Problem(where=str(repository), cause=cause, then=then)


def refusal(repository: Repository, answer: requests.Response, what: str = "") -> RegistryError:
    """An answer that is an error, in the registry's own words. `what` says what was asked for."""
    try:
        errors = answer.json()["errors"]
        message = "; ".join(
            f"{one.get('code', '')}: {one.get('message', '')}".strip(": ") for one in errors
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        message = ""
    status = answer.status_code
    cause = f"{what}the registry says: HTTP {status} {message or answer.reason or ''}".strip()
    if status not in _TRANSIENT:
        return RegistryError(problem(repository, cause, status), status)
    error = TransientError(problem(repository, cause), status)
    error.retry_after = answer.headers.get("Retry-After", "")
    return error


def json_object(answer: requests.Response) -> dict[str, Any]:
    """An answer's JSON object. Raises RegistryError for anything else."""
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        where = urlsplit(answer.url).netloc
        raise RegistryError(
            Problem(where=where, cause="its answer is not a JSON object", then="is it a registry?")
        )
    return found
