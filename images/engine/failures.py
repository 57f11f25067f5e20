"""Why the engine failed, as an enum: of a build from its error and log, of any other request from what it says.

This is the only module that reads the text of an error. Callers decide by `FailureKind` and `EngineErrorKind`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from images.errors import Problem, UserError


class FailureKind(StrEnum):
    """Why a build failed, as far as it changes what a person does next."""

    NETWORK = "network"
    HASH = "hash"
    TLS = "tls"
    ACCESS = "access"
    COMPILE = "compile"
    DISK = "disk"
    MEMORY = "memory"
    APT = "apt"
    RESOLVE = "resolve"
    BASE = "base"
    DOCKERFILE = "dockerfile"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The cause of a failed build and the next step for a person."""

    kind: FailureKind
    cause: str
    then: str
    line: str = ""
    """The line that told so."""

    @property
    def retryable(self) -> bool:
        return self.kind is FailureKind.NETWORK


@dataclass(frozen=True)
class _Sign:
    kind: FailureKind
    pattern: re.Pattern[str]
    cause: str
    then: str


def _sign(kind: FailureKind, cause: str, then: str, *alternatives: str) -> _Sign:
    return _Sign(kind, re.compile("|".join(alternatives), re.IGNORECASE), cause, then)


_MORE_MEMORY = "give the engine more memory, or lower MAX_JOBS and --jobs"

# The first sign that fits wins, so the definite ones come first: a compile whose log also holds a download that was
# repeated with success is a compile error; a wheel "failed to build" because its index was away is a network error.
_SIGNS = (
    _sign(
        FailureKind.DISK,
        "the disk of the engine is full",
        "free space (`docker system df`, `docker builder prune`), then build again",
        r"no space left on device",
        r"\bENOSPC\b",
        r"disk quota exceeded",
        r"not enough free space in /var/cache/apt",
    ),
    _sign(
        FailureKind.HASH,
        "a file is not the one that the lock names",
        "find out why before anything else: a mirror that serves other files, or a lock that is older than its index; "
        "`nox -s lock -- NAME` makes a new lock",
        r"hash mismatch for",
        r"do not match the hashes from the requirements file",
        r"hash sum mismatch",
        r"hashes are required in --require-hashes mode",
    ),
    _sign(
        FailureKind.MEMORY,
        "the step ran out of memory",
        _MORE_MEMORY,
        r"virtual memory exhausted",
        r"cannot allocate memory",  # BuildKit adds it to an exit code of 137 where the kernel says so
        r"\bMemoryError\b",
    ),
    _sign(
        FailureKind.MEMORY,
        "the step was killed, which is often for lack of memory",
        f"does the kernel say why (`dmesg | grep -i oom`)? If memory was short, {_MORE_MEMORY}",
        r"killed signal terminated program",
        r"exit code:? 137\b",
    ),
    _sign(
        FailureKind.COMPILE,
        "code did not compile",
        "read the first error above: the compiler or the headers do not fit this source",
        r"\bfatal error: .+(?:no such file|not found)",
        r"command '?\S*(?:gcc|g\+\+|cc|c\+\+|nvcc|clang)\S*'? failed with",
        r"^nvcc (?:fatal|error)",
        r"ninja: build stopped",
        r"^collect2: error",
        r"^\S+\.(?:c|cc|cpp|cu|cuh|h|hpp):\d+(?::\d+)?: error:",
        r"^\S+\.(?:cu|cuh|h|hpp)\(\d+\): error",
        r"make(?:\[\d+\])?: \*\*\* .+ error \d+",
        r"cargo build.+exited|could not compile `",
    ),
    _sign(
        FailureKind.TLS,
        "a server's certificate is not trusted inside the build",
        "name your network's CA bundle in SSL_CERT_FILE (or PIP_CERT) on the host, and build again",
        r"certificate verify failed",
        r"certificate verification failed",
        r"invalid peer certificate",
        r"unknownissuer",
        r"x509: certificate signed by unknown authority",
        r"unable to get local issuer certificate",
    ),
    _sign(
        FailureKind.ACCESS,
        "a server asks for other credentials",
        "check the name and password in the index address or proxy settings of the host (UV_*, PIP_INDEX_URL), "
        "for a base image `docker login`",
        r"\b401 (?:client error|unauthorized)",
        r"\b403 (?:client error|forbidden)",
        r"status code 40[13]\b",
        r"\(40[13] (?:unauthorized|forbidden)\)",
        r"\b407 proxy authentication",
        r"unauthorized: (?:authentication|incorrect)",
    ),
    _sign(
        FailureKind.NETWORK,
        "the network failed",
        "can the index, the Debian mirror and the proxy be reached? building again keeps what is finished",
        r"temporary failure (?:in name resolution|resolving)",
        r"name or service not known",
        r"could not resolve(?: host)?\b",
        r"no such host",
        r"failed to lookup address",
        r"dns error",
        r"connection (?:timed out|reset|refused|aborted)",
        r"connect timeout|read timed out|timed out waiting for|connection broken by|operation timed out",
        r"i/o timeout|tls handshake timeout",
        r"network is unreachable|no route to host",
        r"newconnectionerror|remotedisconnected|incompleteread|protocolerror",
        r"error sending request for url",
        r"error decoding response body|request or response body error|end of file before message length",
        r"unexpected eof|connection closed before",
        r"failed to download distribution due to network timeout",
        r"\b(?:429|500|502|503|504) (?:client error|server error|too many|internal|bad gateway|service|gateway)",
        r"\((?:429|50[0234]) [a-z ]+\)",
        r"unable to connect to \S+:http|could not connect to \S+",
        r"mirror sync in progress",
    ),
    _sign(
        FailureKind.APT,
        "apt could not install the Debian packages",
        "does the base's Debian suite have them? `--no-cache` fetches a new package list",
        r"^e: unable to locate package",
        r"^e: package .+ has no installation candidate",
        r"^e: version .+ was not found",
        r"^e: unable to correct problems",
        r"^e: failed to fetch .+ 404",
        r"^e: the repository .+ (?:is not signed|does not have a release file)",
        r"^e: release file for .+ is (?:expired|not valid yet)",
        r"^e: sub-process .*dpkg returned an error",
        r"^e: ",
    ),
    _sign(
        FailureKind.RESOLVE,
        "a package that the lock names can't be had from this index",
        "is the index complete for these versions? `nox -s lock -- NAME` makes a new lock",
        r"no solution found when resolving",
        r"was not found in the package registry",
        r"could not find a version that satisfies",
        r"no matching distribution found",
        r"is not a supported wheel on this platform",
        r"doesn't have a (?:source distribution or )?wheel",
    ),
    _sign(
        FailureKind.BASE,
        "the base image can't be had",
        "check its name and that its registry can be reached, or build on an image you have: `--base REF`",
        r"pull access denied",
        r"failed to (?:resolve source metadata|load metadata|load cache key)",
        r"manifest unknown|manifest for .+ not found",
        r"repository does not exist",
    ),
    _sign(
        FailureKind.COMPILE,
        "a package did not build from source",
        "read the log above: it names what the build lacks",
        r"failed to build (?:installable wheels|`|the)",
        r"failed building wheel for",
        r"build backend failed",
        r"metadata-generation-failed",
    ),
    _sign(
        FailureKind.DOCKERFILE,
        "BuildKit does not accept the Dockerfile",
        "compare with `nox -s render -- NAME`; this engine may be too old for what a template uses",
        r"dockerfile parse error",
        r"failed to (?:solve with frontend|create llb definition|read dockerfile)",
        r"unknown (?:instruction|flag)",
        r"failed to (?:compute cache key|calculate checksum)",
        r"target stage .+ could not be found",
    ),
)


def classify(error: str, log: Sequence[str]) -> Failure:
    """What `error` (BuildKit's) and `log` (the failed step's last lines) say about the cause."""
    lines = [line.strip() for line in (*log, *error.splitlines()) if line.strip()]
    for sign in _SIGNS:
        for line in lines:
            if sign.pattern.search(line):
                return Failure(kind=sign.kind, cause=sign.cause, then=sign.then, line=_plain(line))
    last = lines[-1] if lines else "BuildKit gave no reason"
    return Failure(kind=FailureKind.OTHER, cause=last, then="read the log of the step above")


class EngineErrorKind(StrEnum):
    """Why the engine refused a request, as far as a caller acts on it."""

    NO_SUCH_IMAGE = "no such image"
    BAD_REFERENCE = "bad reference"
    REGISTRY_REFUSAL = "registry refusal"
    """A registry answered, and said no."""
    ULIMIT = "ulimit"
    """The engine may not set the limits that were asked for: it runs in a container itself."""
    NO_COMMAND = "no command"
    """The image lacks the program that was to run."""
    CONNECTION = "connection"
    LOCAL_FILE = "local file"
    OTHER = "other"

    @property
    def is_refusal(self) -> bool:
        """A registry was reached: asking again gives the same answer."""
        return self in (EngineErrorKind.REGISTRY_REFUSAL, EngineErrorKind.BAD_REFERENCE)


def _any_of(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


# The first that fits wins. A registry's refusal has words of its own: a socket's and a file's "permission denied" and
# "not found" are none of it.
_ENGINE_SIGNS = (
    (EngineErrorKind.ULIMIT, _any_of(r"rlimit")),
    (EngineErrorKind.NO_COMMAND, _any_of(r"executable file not found")),
    (EngineErrorKind.BAD_REFERENCE, _any_of(r"invalid reference")),
    (
        EngineErrorKind.REGISTRY_REFUSAL,
        _any_of(
            r"(?:manifest|name) unknown",
            r"\b(?:manifest|repository|tag|page|http 404)\s.*\bnot found",
            # containerd: a whole reference
            r"(?<![\w./-])\w[\w.-]*(?::\d+)?/[\w./-]+(?::[\w.-]+|@sha256:\w+): not found",
            r"(?<!permission )\bdenied(?::|\W*$)",
            r"no basic auth credentials|403 forbidden",
            r"access (?:to the resource is )?denied",
            r"\bunauthorized\b|authentication required",
        ),
    ),
)


def engine_error_kind(text: str, *, not_found: bool = False) -> EngineErrorKind:
    """The kind of an error from the engine's words. `not_found`: it answered with status 404."""
    kinds = [kind for kind, sign in _ENGINE_SIGNS if sign.search(text)]
    of_container = EngineErrorKind.ULIMIT in kinds or EngineErrorKind.NO_COMMAND in kinds
    if not_found and "image" in text.lower() and not of_container:
        return EngineErrorKind.NO_SUCH_IMAGE
    return kinds[0] if kinds else EngineErrorKind.OTHER


def is_cancelled(error: str) -> bool:
    """Whether a build step's error only says that BuildKit stopped it because another step failed."""
    return "context canceled" in error


def step_name(name: str, width: int = 96) -> str:
    """A step's name without its mounts and without the first command of every step: one line of `width` characters."""
    text = " ".join(word for word in name.split() if not word.startswith("--mount="))
    text = text.replace("sh /run/scripts/record_change_times.sh && ", "")
    return text if len(text) <= width else text[: width - 1] + "…"


def _plain(line: str) -> str:
    """What pip's retries say, without the names of its objects."""
    if "after connection broken by" not in line:
        return line
    broken_by = line.partition("after connection broken by")[2]
    return re.sub(r"\w+\('<[^>]*>: ", "", broken_by).replace("')'", "").strip(" '")


class BuildFailed(UserError):  # noqa: N818  # said as an event: `except BuildFailed`
    """A build step failed: which one, what BuildKit says, the end of its log, and what it amounts to."""

    def __init__(self, *, step: str, error: str, log: Sequence[str]) -> None:
        self.step, self.error, self.log = step, error, tuple(log)
        self.failure = classify(error, log)
        detail = f" ({self.failure.line})" if self.failure.line else ""
        super().__init__(
            Problem(where=step_name(step), cause=f"{self.failure.cause}{detail}", then=self.failure.then),
            code=1,
        )


class EngineError(UserError):
    """The engine refused a request, or the connection to it broke. `kind` tells callers which."""

    def __init__(self, problem: Problem, kind: EngineErrorKind, *, code: int = 1) -> None:
        self.kind = kind
        super().__init__(problem, code=code)


class NoSuchImage(EngineError):  # noqa: N818  # said as an event
    """The engine does not have this image."""

    def __init__(self, ref: str) -> None:
        then = "build it (`nox -s build -- NAME`) or pull it"
        problem = Problem(where=ref, cause="the engine has no such image", then=then)
        super().__init__(problem, EngineErrorKind.NO_SUCH_IMAGE, code=2)


class Cancelled(Exception):  # noqa: N818  # not an error of anyone's
    """Work on the engine was given up because `Engine.cancel` was called from elsewhere."""
