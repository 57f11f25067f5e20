"""Why the engine failed, as an enum: of a build from its error and log, of any other request from what it says.

This is the only module that reads the text of an error. Callers decide by `Failure.kind` and `EngineErrorKind`.
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
    """The cause of a failed build and the next step for a person."""

    kind: str
    """`network`, `hash`, `disk` and others of build_failures.yaml; `other`."""
    cause: str
    then: str
    line: str = ""


def classify(error: str, log: Sequence[str]) -> Failure:
    """What `error` (BuildKit's) and `log` (the failed step's last lines) say about the cause.

    The known texts are in images/data/build_failures.yaml.
    """
    lines = [line.strip() for line in (*log, *error.splitlines()) if line.strip()]
    for row in yaml.safe_load((DATA / "build_failures.yaml").read_text(encoding="utf-8")):
        pattern = re.compile("|".join(row["patterns"]), re.IGNORECASE)
        for line in lines:
            if pattern.search(line):
                then = re.sub(
                    r"{(\w+) (\w+)}", lambda found: command(found[1], found[2]), row["then"]
                )
                return Failure(kind=row["kind"], cause=row["cause"], then=then, line=line)
    last = lines[-1] if lines else "BuildKit gave no reason"
    return Failure(kind="other", cause=last, then="read the log of the step above")


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


# The first that fits wins. A registry's refusal has words of its own: a socket's and a file's "permission denied" and
# "not found" are none of it.
_ENGINE_SIGNS = {
    EngineErrorKind.ULIMIT: r"rlimit",
    EngineErrorKind.NO_COMMAND: r"executable file not found",
    EngineErrorKind.BAD_REFERENCE: r"invalid reference",
    EngineErrorKind.REGISTRY_REFUSAL: r"(?:manifest|name) unknown"
    r"|\b(?:manifest|repository|tag|page|http 404)\s.*\bnot found"
    r"|(?<![\w./-])\w[\w.-]*(?::\d+)?/[\w./-]+(?::[\w.-]+|@sha256:\w+): not found"  # containerd: a whole reference
    r"|(?<!permission )\bdenied(?::|\W*$)|access (?:to the resource is )?denied"
    r"|no basic auth credentials|403 forbidden|\bunauthorized\b|authentication required",
}


def engine_error_kind(text: str, *, not_found: bool = False) -> EngineErrorKind:
    """The kind of an error from the engine's words. `not_found`: it answered with status 404."""
    signs = (kind for kind, sign in _ENGINE_SIGNS.items() if re.search(sign, text, re.IGNORECASE))
    found = next(signs, EngineErrorKind.OTHER)
    if (
        not_found
        and "image" in text.lower()
        and found not in (EngineErrorKind.ULIMIT, EngineErrorKind.NO_COMMAND)
    ):
        return EngineErrorKind.NO_SUCH_IMAGE
    return found


CANCELLED = "context canceled"
"""What the error of a build step says that BuildKit only stopped because another one failed."""


def step_name(name: str, width: int = 96) -> str:
    """A step's name without its mounts and without the first command of every step: one line of `width` characters."""
    text = " ".join(word for word in name.split() if not word.startswith("--mount="))
    text = text.replace("sh /run/scripts/record_change_times.sh && ", "")
    return text if len(text) <= width else text[: width - 1] + "…"


class BuildFailed(UserError):  # noqa: N818  # said as an event: `except BuildFailed`
    """A build step failed: which one, what BuildKit says, the end of its log, and what it amounts to."""

    def __init__(self, *, step: str, error: str, log: Sequence[str]) -> None:
        self.step, self.error, self.log = step, error, tuple(log)
        self.failure = classify(error, log)
        detail = f" ({self.failure.line})" if self.failure.line else ""
        cause = f"{self.failure.cause}{detail}"
        super().__init__(
            Problem(where=step_name(step), cause=cause, then=self.failure.then), code=1
        )


class EngineError(UserError):
    """The engine refused a request, or the connection to it broke. `kind` tells callers which."""

    def __init__(
        self, problem: Problem, kind: EngineErrorKind = EngineErrorKind.OTHER, *, code: int = 1
    ) -> None:
        self.kind = kind
        super().__init__(problem, code=code)


class NoSuchImage(EngineError):  # noqa: N818  # said as an event
    """The engine does not have this image."""


class Cancelled(Exception):  # noqa: N818  # not an error of anyone's
    """Work on the engine was given up because `Engine.cancel` was called from elsewhere."""
