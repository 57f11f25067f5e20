"""Why a build failed: real errors of uv, pip, apt, gcc, BuildKit and the engine are classified."""

from pathlib import Path

import pytest
import yaml

from images.engine.failures import BuildFailed, classify, engine_error_kind, step_name

EXIT_1 = 'process "/bin/sh -c uv pip install" did not complete successfully: exit code: 1'


SAID = yaml.safe_load(Path(__file__).with_name("failures.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, lines in SAID["step"].items() for line in lines]
)
def test_kinds(kind: str, line: str) -> None:
    failure = classify(EXIT_1, ["Collecting torch", line])
    assert failure.kind == kind and failure.cause and failure.then


KILLED = 'process "/bin/sh -c make" did not complete successfully: exit code: 137'


@pytest.mark.parametrize(
    ("error", "log", "cause"),
    [
        (KILLED, ["[3/9] nvcc"], "the step was killed, which is often for lack of memory"),
        (
            EXIT_1,
            ["g++: fatal error: Killed signal terminated program cc1plus"],
            "the step was killed, which is often",
        ),
        (f"{KILLED}: cannot allocate memory", ["[3/9] nvcc"], "the step ran out of memory"),
        (KILLED, ["numpy._ArrayMemoryError: x", "MemoryError"], "the step ran out of memory"),
        (
            EXIT_1,
            ["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"],
            "the step was killed, which is often",
        ),
        (
            EXIT_1,
            ["c++: fatal error: Killed signal", "cc1plus: out of memory"],
            "the step ran out of memory",
        ),
    ],
)
def test_a_killed_step_is_short_of_memory_only_where_something_says_so(
    error: str, log: list[str], cause: str
) -> None:
    failure = classify(error, log)
    assert failure.kind == "memory"
    assert failure.cause.startswith(cause) and "give the engine more memory" in failure.then


def test_a_download_repeated_well_is_no_cause_and_one_that_broke_a_build_is() -> None:
    repeated = [
        "WARNING: Retrying after connection broken",
        "error: command '/usr/bin/gcc' failed with exit code 1",
    ]
    broken = ["  × Failed to build `x==1`", "  ╰─▶ error sending request for url (https://a.test/)"]
    assert [classify(EXIT_1, log).kind for log in (repeated, broken)] == ["compile", "network"]
    failure = classify("", [])
    assert (failure.kind, failure.cause) == ("other", "BuildKit gave no reason")


@pytest.mark.parametrize(
    "line",
    [
        '/build/a.cu(12): error: identifier "foo" is undefined',
        "/build/b.cpp:7:10: fatal error: nope.h: No such file",
        "nvcc fatal   : Unsupported gpu architecture 'compute_53'",
        "RuntimeError: the sources need CUDA 12",
    ],
)
def test_the_first_error_of_a_compilation_is_told(line: str) -> None:
    assert classify(EXIT_1, ["[1/9] nvcc", line, "error: subprocess failed"]).line == line


def test_a_failed_build_names_step_cause_and_next_command() -> None:
    step = (
        "[torch 3/9] RUN --mount=type=cache,target=/c "
        "--mount=type=bind,source=host,target=/h uv pip install"
    )
    failed = BuildFailed(
        step=step, error=EXIT_1, log=["x", "error: Hash mismatch for `torch==2.7.1`"]
    )
    assert str(failed) == (
        "[torch 3/9] RUN uv pip install: a file is not the one that the lock names "
        f"(error: Hash mismatch for `torch==2.7.1`)\n    next: {failed.failure.then}"
    )
    assert failed.code == 1
    assert failed.log == ("x", "error: Hash mismatch for `torch==2.7.1`")


def test_step_names_are_cut_to_one_line() -> None:
    assert step_name("[a 1/2] RUN   x " + "y" * 200, width=20) == "[a 1/2] RUN x yyyyy…"
    recorded = (
        "[a 1/2] RUN --mount=type=tmpfs,target=/run     "
        "sh /run/scripts/record_change_times.sh     && sh x.sh"
    )
    assert step_name(recorded) == "[a 1/2] RUN sh x.sh"


@pytest.mark.parametrize("of", ["engine", "engine, not found"])
def test_kinds_of_engine_errors(of: str) -> None:
    wanted = [(kind, said) for kind, lines in SAID[of].items() for said in lines]
    assert [
        (engine_error_kind(said, not_found="not found" in of), said) for _, said in wanted
    ] == wanted
