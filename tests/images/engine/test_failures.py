"""Why a build failed: real error texts of uv, pip, apt, gcc, BuildKit and the engine, each put where it belongs."""

import pytest

from images.engine.failures import (
    BuildFailed,
    EngineErrorKind,
    FailureKind,
    classify,
    engine_error_kind,
    step_name,
)

EXIT_1 = 'process "/bin/sh -c uv pip install" did not complete successfully: exit code: 1'


LINES = {
    FailureKind.NETWORK: [
        "error: Failed to fetch: `https://example.test/simple/torch/`: error sending request for url",
        "E: Failed to fetch http://example.test/debian/x.deb  Temporary failure resolving 'example.test'",
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'ReadTimeoutError'",
        "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.",
        "E: Failed to fetch http://x/y  Connection reset by peer",
        "error: HTTP status server error (503 Service Unavailable) for url",
        'Get "https://registry.test/v2/": dial tcp: lookup registry.test on 192.0.2.53:53: no such host',
        "net/http: TLS handshake timeout",
        "File has unexpected size (9 != 8). Mirror sync in progress?",
    ],
    FailureKind.HASH: [
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
        "error: Hash mismatch for `torch==2.7.1`",
        "E: Failed to fetch http://x/y.deb  Hash Sum mismatch",
    ],
    FailureKind.TLS: [
        "invalid peer certificate: UnknownIssuer",
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
    ],
    FailureKind.ACCESS: [
        "HTTP status client error (401 Unauthorized) for url (https://example.test/simple/torch/)",
        "ERROR: 403 Client Error: Forbidden for url: https://example.test/simple/",
    ],
    FailureKind.COMPILE: [
        "error: command '/usr/bin/gcc' failed with exit code 1",
        "ninja: build stopped: subcommand failed.",
        "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        'csrc/x.cu(12): error: identifier "foo" is undefined',
        "src/x.cpp:10:5: error: expected ';'",
        "a.c:1:10: fatal error: Python.h: No such file or directory",
        "  × Failed to build `causal-conv1d==1.7.0`",
    ],
    FailureKind.DISK: [
        "OSError: [Errno 28] No space left on device",
    ],
    FailureKind.MEMORY: [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "executor failed running [/bin/sh -c make]: exit code: 137",
    ],
    FailureKind.APT: [
        "E: Unable to locate package python3.99",
        "E: Package 'gcc-99' has no installation candidate",
        "E: Failed to fetch http://x/y.deb  404  Not Found",
    ],
    FailureKind.RESOLVE: [
        "  × No solution found when resolving dependencies:",
        "ERROR: No matching distribution found for torch==9.9",
    ],
    FailureKind.BASE: [
        "pull access denied, repository does not exist or may require authorization",
    ],
    FailureKind.DOCKERFILE: [
        "dockerfile parse error line 3: unknown instruction: RUNN",
    ],
    FailureKind.OTHER: [
        "assertion failed",
    ],
}


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines])
def test_kinds(kind: FailureKind, line: str) -> None:
    failure = classify(EXIT_1, ["Collecting torch", line])
    assert failure.kind is kind and failure.cause and failure.then


KILLED = 'process "/bin/sh -c make" did not complete successfully: exit code: 137'


@pytest.mark.parametrize(
    ("error", "log", "cause"),
    [
        (KILLED, ["[3/9] nvcc"], "the step was killed, which is often for lack of memory"),
        (EXIT_1, ["g++: fatal error: Killed signal terminated program cc1plus"], "the step was killed, which is often"),
        (f"{KILLED}: cannot allocate memory", ["[3/9] nvcc"], "the step ran out of memory"),
        (KILLED, ["numpy._ArrayMemoryError: x", "MemoryError"], "the step ran out of memory"),
    ],
)
def test_a_killed_step_is_short_of_memory_only_where_something_says_so(error: str, log: list[str], cause: str) -> None:
    failure = classify(error, log)
    assert failure.kind is FailureKind.MEMORY
    assert failure.cause.startswith(cause) and "give the engine more memory" in failure.then


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        (
            FailureKind.COMPILE,
            [
                "WARNING: Retrying (Retry(total=4)) after connection broken by 'ConnectionResetError'",
                "error: command '/usr/bin/gcc' failed with exit code 1",
                "ERROR: Failed building wheel for x",
            ],
        ),
        (
            FailureKind.NETWORK,
            [
                "  × Failed to build `x==1`",
                "  ╰─▶ error sending request for url (https://example.test/simple/setuptools/)",
            ],
        ),
    ],
)
def test_a_download_that_was_repeated_well_is_no_cause_and_one_that_broke_a_build_is(
    kind: FailureKind, log: list[str]
) -> None:
    assert classify(EXIT_1, log).kind is kind


def test_without_any_words_something_is_said() -> None:
    failure = classify("", [])
    assert failure.kind is FailureKind.OTHER
    assert failure.cause == "BuildKit gave no reason"


def test_a_failed_build_names_step_cause_and_next_command() -> None:
    step = "[torch 3/9] RUN --mount=type=cache,target=/c --mount=type=bind,source=host,target=/h uv pip install"
    failed = BuildFailed(step=step, error=EXIT_1, log=["x", "error: Hash mismatch for `torch==2.7.1`"])
    assert str(failed) == (
        "[torch 3/9] RUN uv pip install: a file is not the one that the lock names (error: Hash mismatch for "
        f"`torch==2.7.1`)\n    next: {failed.failure.then}"
    )
    assert failed.code == 1
    assert failed.log == ("x", "error: Hash mismatch for `torch==2.7.1`")


def test_step_names_are_cut_to_one_line() -> None:
    assert step_name("[a 1/2] RUN   x " + "y" * 200, width=20) == "[a 1/2] RUN x yyyyy…"
    recorded = "[a 1/2] RUN --mount=type=tmpfs,target=/run     sh /run/scripts/record_change_times.sh     && sh x.sh"
    assert step_name(recorded) == "[a 1/2] RUN sh x.sh"


@pytest.mark.parametrize(
    ("kind", "said", "not_found"),
    [
        (EngineErrorKind.NO_SUCH_IMAGE, "No such image: truetag-none:1", True),
        (EngineErrorKind.NO_SUCH_IMAGE, "An image does not exist locally with the tag: a/b", True),
        (EngineErrorKind.BAD_REFERENCE, "invalid reference format", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "manifest for a:1 not found: manifest unknown", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "can't be pushed: unauthorized: authentication required", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "requested access to the resource is denied", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "pull access denied for a/b, repository does not exist or", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "denied: permission_denied: write_package", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "name unknown: repository name not known to registry", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "failed to resolve reference: ghcr.test/a/b:1: not found", False),
        (EngineErrorKind.REGISTRY_REFUSAL, 'error parsing HTTP 404 response body: "404 page not found"', False),
        (EngineErrorKind.OTHER, "dial unix /var/run/docker.sock: connect: permission denied", False),
        (EngineErrorKind.OTHER, "failed to register layer: open /etc/x: permission denied: unknown", False),
        (EngineErrorKind.REGISTRY_REFUSAL, 'Head "https://ghcr.io/v2/x/y/manifests/latest": denied', False),
        (EngineErrorKind.REGISTRY_REFUSAL, "no basic auth credentials", False),
        (EngineErrorKind.REGISTRY_REFUSAL, "unexpected status from HEAD request to a.test/v2/: 403 Forbidden", False),
        (EngineErrorKind.OTHER, "network tag-x not found", True),
        (EngineErrorKind.OTHER, "lookup repository.corp on 10.0.0.2:53: server not found", False),
        (EngineErrorKind.OTHER, "sh: /run/scripts/x.sh:12: not found", False),
        (EngineErrorKind.OTHER, "network truetag-x not found", True),
        (EngineErrorKind.OTHER, "content digest sha256:ab12: not found", False),
        (EngineErrorKind.OTHER, "mount /var/lib/docker/x: not found", False),
        (EngineErrorKind.ULIMIT, "error setting rlimits for ready process: operation not permitted", False),
        (EngineErrorKind.NO_COMMAND, 'exec: "python3": executable file not found in $PATH: unknown', False),
        (EngineErrorKind.NO_COMMAND, 'in the image: exec: "x": executable file not found in $PATH', True),
        (EngineErrorKind.OTHER, "dial tcp: lookup registry.test: no such host", False),
        (EngineErrorKind.OTHER, "received unexpected HTTP status: 503 Service Unavailable", False),
    ],
)
def test_kinds_of_engine_errors(kind: EngineErrorKind, said: str, not_found: bool) -> None:
    assert engine_error_kind(said, not_found=not_found) is kind
