"""Finds out why a build or a request to the engine failed, from the text of the error.

This is the only module that reads such texts. Callers decide by `Failure.kind` and
`EngineErrorKind`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import yaml

from images.config.paths import DATA
from images.errors import Problem, UserError, command


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a build failed, and the next step for the user."""

    kind: str
    """`network`, `hash`, `disk` and others of build_failures.yaml; `other`."""
    cause: str
    then: str
    line: str = ""


def classify(error: str, log: Sequence[str]) -> Failure:
    """Return why a build failed, from BuildKit's error and the last lines of the failed step's log.

    The known causes are in images/data/build_failures.yaml, each with regular expressions, words
    for the user and a next step. The first cause that fits any line is returned, with that line. If
    none fits, the cause is the last line itself, with the kind `other`.
    """
    # The log comes first, so its lines are preferred to those of BuildKit's error.
    lines = [line.strip() for line in (*log, *error.splitlines()) if line.strip()]
    text = (DATA / "build_failures.yaml").read_text(encoding="utf-8")
    for known in yaml.safe_load(text):
        pattern = re.compile("|".join(known["patterns"]), re.IGNORECASE)
        for line in lines:
            if pattern.search(line):
                return Failure(
                    kind=known["kind"],
                    cause=known["cause"],
                    then=_with_commands(known["then"]),
                    line=line,
                )
    last_line = lines[-1] if lines else "BuildKit gave no reason"
    return Failure(kind="other", cause=last_line, then="read the log of the step above")


def _with_commands(text: str) -> str:
    """Return a text in which each `{VERB NAME}` is replaced by that command of ours."""

    def full_command(placeholder: re.Match[str]) -> str:
        return command(placeholder[1], placeholder[2])

    return re.sub(r"{(\w+) (\w+)}", full_command, text)


class EngineErrorKind(StrEnum):
    """Why the engine refused a request, as far as a caller acts on it."""

    NO_SUCH_IMAGE = "no such image"
    BAD_REFERENCE = "bad reference"
    REGISTRY_REFUSAL = "registry refusal"
    ULIMIT = "ulimit"
    """The engine may not set the limits that were asked for: it runs in a container itself."""
    NO_COMMAND = "no command"
    """The image lacks the program that was to run."""
    OTHER = "other"


# The first that fits wins. A registry's refusal has words of its own: a socket's and a file's
# "permission denied" and "not found" are none of it.
_ENGINE_SIGNS = {
    EngineErrorKind.ULIMIT: r"rlimit",
    EngineErrorKind.NO_COMMAND: r"executable file not found",
    EngineErrorKind.BAD_REFERENCE: r"invalid reference|repository name must",
    EngineErrorKind.REGISTRY_REFUSAL: r"(?:manifest|name) unknown"
    r"|\b(?:manifest|repository|tag|page|http 404)\s.*\bnot found"
    # containerd names the whole reference:
    r"|(?<![\w./-])\w[\w.-]*(?::\d+)?/[\w./-]+(?::[\w.-]+|@sha256:\w+): not found"
    r"|(?<!permission )\bdenied(?::|\W*$)|access (?:to the resource is )?denied"
    r"|no basic auth credentials|403 forbidden|\bunauthorized\b|authentication required",
}


def engine_error_kind(text: str, *, not_found: bool = False) -> EngineErrorKind:
    """Return why the engine refused a request, from the text of its error; OTHER if unknown.

    `not_found`: the engine answered with HTTP status 404. It makes the kind NO_SUCH_IMAGE if the
    text speaks of an image.
    """
    kind = EngineErrorKind.OTHER
    for candidate, pattern in _ENGINE_SIGNS.items():
        if re.search(pattern, text, re.IGNORECASE):
            kind = candidate
            break
    # These are no sign of a missing image: the engine also answers 404 where an image exists, but
    # can't be started.
    cannot_start = kind in (EngineErrorKind.ULIMIT, EngineErrorKind.NO_COMMAND)
    if not_found and "image" in text.lower() and not cannot_start:
        return EngineErrorKind.NO_SUCH_IMAGE
    return kind


CANCELLED = "context canceled"
"""Text in the error of a build step that was stopped only because another step failed."""


def step_name(name: str, width: int = 96) -> str:
    """Return the name of a build step as one line of at most `width` characters.

    Mounts are left out, and so is the command with which every step of ours begins.
    """
    text = " ".join(word for word in name.split() if not word.startswith("--mount="))
    text = text.replace("sh /run/scripts/record_change_times.sh && ", "")
    return text if len(text) <= width else text[: width - 1] + "…"


class BuildFailed(UserError):  # noqa: N818  # said as an event: `except BuildFailed`
    """A build step failed.

    Has the step's name, BuildKit's error, the end of the log, and the cause that they show.
    """

    def __init__(self, *, step: str, error: str, log: Sequence[str]) -> None:
        self.step, self.error, self.log = step, error, tuple(log)
        self.failure = classify(error, log)
        detail = f" ({self.failure.line})" if self.failure.line else ""
        cause = f"{self.failure.cause}{detail}"
        super().__init__(
            Problem(where=step_name(step), cause=cause, then=self.failure.then), code=1
        )


class EngineError(UserError):
    """The engine refused a request, or the connection to it broke; `kind` says why."""

    def __init__(
        self, problem: Problem, kind: EngineErrorKind = EngineErrorKind.OTHER, *, code: int = 1
    ) -> None:
        self.kind = kind
        super().__init__(problem, code=code)


class NoSuchImage(EngineError):  # noqa: N818  # said as an event
    """The engine does not have this image."""


class Cancelled(Exception):  # noqa: N818  # not an error of anyone's
    """Work on the engine was given up because `Engine.cancel` was called from elsewhere."""
