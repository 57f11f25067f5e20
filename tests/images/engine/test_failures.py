"""Why a build failed: real error texts of uv, pip, apt, gcc, BuildKit and the engine, each put where it belongs."""

import pytest

from images.engine.failures import BuildFailed, Kind, classify, step_name

EXIT_1 = 'process "/bin/sh -c uv pip install" did not complete successfully: exit code: 1'


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (Kind.NETWORK, "error: Failed to fetch: `https://example.test/simple/torch/`: error sending request for url"),
        (
            Kind.NETWORK,
            "E: Failed to fetch http://example.test/debian/x.deb  Temporary failure resolving 'example.test'",
        ),
        (Kind.NETWORK, "WARNING: Retrying (Retry(total=0)) after connection broken by 'ReadTimeoutError'"),
        (Kind.NETWORK, "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out."),
        (Kind.NETWORK, "E: Failed to fetch http://x/y  Connection reset by peer"),
        (Kind.NETWORK, "error: HTTP status server error (503 Service Unavailable) for url"),
        (
            Kind.NETWORK,
            'Get "https://registry.test/v2/": dial tcp: lookup registry.test on 192.0.2.53:53: no such host',
        ),
        (Kind.NETWORK, "net/http: TLS handshake timeout"),
        (Kind.NETWORK, "File has unexpected size (9 != 8). Mirror sync in progress?"),
        (Kind.HASH, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."),
        (Kind.HASH, "error: Hash mismatch for `torch==2.7.1`"),
        (Kind.HASH, "E: Failed to fetch http://x/y.deb  Hash Sum mismatch"),
        (Kind.TLS, "invalid peer certificate: UnknownIssuer"),
        (Kind.TLS, "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        (Kind.ACCESS, "HTTP status client error (401 Unauthorized) for url (https://example.test/simple/torch/)"),
        (Kind.ACCESS, "ERROR: 403 Client Error: Forbidden for url: https://example.test/simple/"),
        (Kind.COMPILE, "error: command '/usr/bin/gcc' failed with exit code 1"),
        (Kind.COMPILE, "ninja: build stopped: subcommand failed."),
        (Kind.COMPILE, "nvcc fatal   : Unsupported gpu architecture 'compute_120'"),
        (Kind.COMPILE, 'csrc/x.cu(12): error: identifier "foo" is undefined'),
        (Kind.COMPILE, "src/x.cpp:10:5: error: expected ';'"),
        (Kind.COMPILE, "a.c:1:10: fatal error: Python.h: No such file or directory"),
        (Kind.COMPILE, "  × Failed to build `causal-conv1d==1.7.0`"),
        (Kind.DISK, "OSError: [Errno 28] No space left on device"),
        (Kind.MEMORY, "g++: fatal error: Killed signal terminated program cc1plus"),
        (Kind.MEMORY, "executor failed running [/bin/sh -c make]: exit code: 137"),
        (Kind.APT, "E: Unable to locate package python3.99"),
        (Kind.APT, "E: Package 'gcc-99' has no installation candidate"),
        (Kind.APT, "E: Failed to fetch http://x/y.deb  404  Not Found"),
        (Kind.RESOLVE, "  × No solution found when resolving dependencies:"),
        (Kind.RESOLVE, "ERROR: No matching distribution found for torch==9.9"),
        (Kind.BASE, "pull access denied, repository does not exist or may require authorization"),
        (Kind.DOCKERFILE, "dockerfile parse error line 3: unknown instruction: RUNN"),
        (Kind.OTHER, "assertion failed"),
    ],
)
def test_kinds(kind: Kind, line: str) -> None:
    failure = classify(EXIT_1, ["Collecting torch", line])
    assert failure.kind is kind
    assert failure.retryable == (kind is Kind.NETWORK)
    assert failure.cause
    assert failure.then


def test_a_compile_error_after_a_repeated_download_is_no_network_trouble() -> None:
    log = [
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'ConnectionResetError'",
        "error: command '/usr/bin/gcc' failed with exit code 1",
        "ERROR: Failed building wheel for x",
    ]
    assert classify(EXIT_1, log).kind is Kind.COMPILE


def test_a_wheel_that_did_not_build_for_want_of_its_index_is_network_trouble() -> None:
    log = [
        "  × Failed to build `x==1`",
        "  ╰─▶ error sending request for url (https://example.test/simple/setuptools/)",
    ]
    assert classify(EXIT_1, log).kind is Kind.NETWORK


def test_without_any_words_something_is_said() -> None:
    failure = classify("", [])
    assert failure.kind is Kind.OTHER
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
