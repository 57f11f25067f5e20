"""What the cpu probes do without torch: forks, cubin headers, file patterns, compilers that are not there."""

import faulthandler
import multiprocessing
import os
import signal
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.judging import judge_claim
from validate.binaries.cubin import EM_CUDA, cubin_facts
from validate.checks.cpu import compiler, imports
from validate.claims import Claim, Tier
from validate.examples.evidence import count_examples_at_once
from validate.harness.forked import measure_in_fork, measure_in_forks
from validate.judging import Status


def test_apart_brings_evidence_back_and_leaves_the_parent_alone() -> None:
    seen: list[int] = []
    evidence = measure_in_fork(
        lambda: {"process": os.getpid(), "seen": seen.append(1), "long": "x" * 300_000}
    )
    assert (evidence["process"] != os.getpid(), len(evidence["long"]), seen) == (True, 300_000, [])


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_apart_survives_a_crash(number: signal.Signals) -> None:
    def measure() -> dict[str, str]:
        faulthandler.disable()  # pytest's would fill the tests' output with the stack of this intended crash
        print("loading the library", flush=True)  # noqa: T201
        os.kill(os.getpid(), number)
        return {}

    error = measure_in_fork(measure)["error"]
    assert error["message"] == f"killed by {number.name}"
    assert error["log"].endswith("loading the library\n")


def test_apart_tells_what_was_raised_and_is_not_fooled_by_a_clean_exit() -> None:
    assert measure_in_fork(lambda: {"is": 1 // 0})["error"]["kind"] == "ZeroDivisionError"
    assert (
        measure_in_fork(lambda: os._exit(0))["error"]["message"]
        == "ended with status 0 before it was done"
    )
    assert measure_in_fork(lambda: sys.exit(0))["error"]["kind"] == "crash"


def test_forks_run_side_by_side_and_one_that_dies_takes_no_other_with_it() -> None:
    met = multiprocessing.get_context("fork").Barrier(3)

    def meets() -> dict[str, int]:
        return {"place": met.wait(60)}  # alone it would wait in vain

    found = dict(measure_in_forks([meets, lambda: os._exit(3), meets, meets], at_once=4))
    assert "error" in found[1] and {found[number]["place"] for number in (0, 2, 3)} == {0, 1, 2}
    assert [number for number, _ in measure_in_forks([dict, dict, dict])] == [0, 1, 2]


def test_forks_leave_other_children_to_who_started_them() -> None:
    other = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    other.start()
    os.waitid(os.P_PID, other.pid or 0, os.WEXITED | os.WNOWAIT)
    assert len(dict(measure_in_forks([dict, dict], at_once=2))) == 2
    other.join()
    assert other.exitcode == 3


@pytest.mark.parametrize(
    ("examples", "cores", "gigabytes", "count"),
    [(3, 16, 12, 3), (9, 64, 12, 4), (3, 2, 64, 1), (3, 16, 2, 1), (0, 16, 64, 1)],
)
def test_examples_run_abreast_as_cores_and_memory_allow(
    examples: int, cores: int, gigabytes: int, count: int
) -> None:
    assert count_examples_at_once(examples, cores, gigabytes << 30) == count


@pytest.mark.parametrize(("program", "said", "at_exit", "error"), cases(__file__, "imports"))
def test_an_import_is_judged_by_what_it_prints_and_by_how_its_process_ends(
    program: str,
    said: list[str] | None,
    at_exit: list[str] | None,
    error: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "planted_package.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    found = imports.import_in_new_process(["planted_package"])
    raised = found.get("error")
    assert (raised and [raised["kind"], raised["message"]]) == error
    assert said is None or found["said"] == said
    assert found.get("said_at_exit") == at_exit


@pytest.mark.parametrize(
    ("abi", "flags", "arch"),
    [
        (7, 0x460546, 70),
        (7, 0x5A0D5A, 90),
        (8, 0xA005A04, 90),
        (8, 0xA006402, 100),
        (8, 0x900780A, 120),
    ],
)
def test_cubin_arch_of_headers_that_ptxas_made(abi: int, flags: int, arch: int) -> None:
    """Flags of what Triton 3.1, 3.3 and 3.9 compiled."""
    ident = b"\x7fELF\x02\x01\x01" + bytes([0x33, abi]) + bytes(7)
    content = ident + struct.pack("<HHIQQQI", 2, EM_CUDA, 1, 0, 0, 0, flags) + bytes(12)
    assert cubin_facts(content)["arch"] == arch


@given(st.binary(max_size=200))
def test_anything_else_is_no_cubin(content: bytes) -> None:
    assert cubin_facts(content)["machine"] != EM_CUDA or content.startswith(b"\x7fELF")


def _launcher_finding() -> tuple[Status, str]:
    claim = Claim(
        check="compiler",
        subject="triton-launcher",
        tier=Tier.CPU,
        probe="cpu.compiler",
        statement="compiles",
    )
    ((_, evidence),) = compiler.measure([claim])
    return judge_claim(claim, evidence)


def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "/nowhere/gcc")
    assert _launcher_finding() == (Status.FAIL, "CC=/nowhere/gcc is no program in this image")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "/nowhere")
    assert _launcher_finding() == (Status.FAIL, "no C compiler: neither gcc nor clang is on PATH")


@pytest.mark.parametrize(
    ("script", "culprit"),
    [
        ("exit 0", "made nothing"),
        ("echo 'cc1: fatal error: no cc1' >&2; exit 1", "cc1: fatal error: no cc1"),
    ],
)
def test_compiler_that_does_not_compile(
    script: str, culprit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "cc"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    source = tmp_path / "triton" / "backends" / "nvidia" / "driver.c"
    source.parent.mkdir(parents=True)
    source.write_text("cuInit(0);", encoding="utf-8")
    (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", str(program))
    status, reason = _launcher_finding()
    assert status is Status.FAIL and culprit in reason
