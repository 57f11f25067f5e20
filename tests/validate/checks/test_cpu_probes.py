"""What probes of the cpu tier measure without torch: imports, compilers, threads."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.cases import cases
from tests.support.judging import judge_claim
from validate.checks.cpu import compiler, imports, threads
from validate.claims import Claim, Tier
from validate.judging import Finding, Status

# ---- imports: what one import prints, and how it ends


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

    run = imports.import_in_new_process(["planted_package"])

    raised = run.get("error")
    assert (raised and [raised["kind"], raised["message"]]) == error
    assert said is None or run["said"] == said
    assert run.get("said_at_exit") == at_exit


# ---- compiler: Triton's driver module


def measure_and_judge_launcher() -> Finding:
    """Build Triton's driver module with the compiler of this environment, and judge that."""
    claim = Claim(
        check="compiler",
        subject="triton-launcher",
        tier=Tier.CPU,
        probe="cpu.compiler",
        statement="compiles",
    )
    ((_, evidence),) = compiler.measure([claim])
    return judge_claim(claim, evidence)


def plant_triton(folder: Path) -> None:
    """Write as much of Triton as is read before anything is compiled."""
    driver_source = folder / "triton" / "backends" / "nvidia" / "driver.c"
    driver_source.parent.mkdir(parents=True)
    driver_source.write_text("cuInit(0);", encoding="utf-8")
    (folder / "triton" / "__init__.py").touch()


def test_a_compiler_that_cc_names_and_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "/nowhere/gcc")

    finding = measure_and_judge_launcher()

    assert finding[:2] == (Status.FAIL, "CC=/nowhere/gcc is no program in this image")


def test_an_image_without_a_compiler_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")

    finding = measure_and_judge_launcher()

    assert finding[:2] == (Status.FAIL, "there is no C compiler: neither gcc nor clang is on PATH")


@pytest.mark.parametrize(
    ("script", "culprit"),
    [
        pytest.param("exit 0", "made nothing", id="makes nothing"),
        pytest.param(
            "echo 'cc1: fatal error: no cc1' >&2; exit 1", "cc1: fatal error: no cc1", id="fails"
        ),
    ],
)
def test_a_compiler_that_does_not_compile_fails_by_its_own_message(
    script: str, culprit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "cc"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    plant_triton(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", str(program))

    status, reason, _ = measure_and_judge_launcher()

    assert status is Status.FAIL
    assert culprit in reason


# ---- imports: the orders in which packages are imported


PACKAGE = "print('imported as', __name__)\n"


def import_claim(package: str, *, first: bool, after: bool) -> Claim:
    """A claim that a package of one module is imported in these orders."""
    expect = {
        "modules": [package],
        "first": first,
        "after": after,
        "complaints": ["no kernels"],
        "harmless": {},
    }
    return Claim(
        check="imports",
        subject=package,
        tier=Tier.CPU,
        probe="cpu.imports",
        statement="-",
        expect=expect,
    )


def test_packages_are_imported_in_the_orders_that_their_claims_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("planted_both", "planted_first", "planted_after"):
        (tmp_path / f"{package}.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    claims = [
        import_claim("planted_both", first=True, after=True),
        import_claim("planted_first", first=True, after=False),
        import_claim("planted_after", first=False, after=True),
    ]

    evidence = dict(imports.measure(claims))

    assert set(evidence["planted_both"]["orders"]) == {"first", "after torch"}
    assert set(evidence["planted_first"]["orders"]) == {"first"}
    assert set(evidence["planted_after"]["orders"]) == {"after torch"}
    for claim in claims:
        for run in evidence[claim.subject]["orders"].values():
            assert run == {"said": [f"imported as {claim.subject}"]}
        assert judge_claim(claim, evidence[claim.subject]).status is Status.PASS


# ---- threads: how many have worked


class Matrix:
    """A matrix whose products cost nothing."""

    def __matmul__(self, _other: "Matrix") -> "Matrix":
        return self


class TorchWithThreads:
    """A stand-in for torch: it reports threads, and as many or fewer of them work."""

    def __init__(self, *, reported: int, working: int) -> None:
        self.reported = reported
        self.working = working

    def get_num_threads(self) -> int:
        return self.reported

    def randn(self, _rows: int, _columns: int) -> Matrix:
        return Matrix()

    def tanh(self, _matrix: Matrix) -> None:
        """Let each working thread use a hundredth of a second of processor time."""

        def work() -> None:
            end = time.thread_time() + 0.01
            while time.thread_time() < end:
                pass

        work()
        for pool in self.pools:
            pool.submit(work).result()

    def __enter__(self) -> "TorchWithThreads":
        self.pools = [ThreadPoolExecutor(max_workers=1) for _ in range(self.working - 1)]
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self.pools:
            pool.shutdown()


@pytest.mark.parametrize(
    ("reported", "working", "seconds_for_all", "counted"),
    [
        pytest.param(3, 3, 600.0, 3, id="all work, and are waited for"),
        pytest.param(3, 2, 0.0, 2, id="two are enough when the time for all is over"),
        pytest.param(3, 1, 0.0, 1, id="a second one is given up in the end"),
        pytest.param(1, 1, 600.0, 1, id="there is only one"),
    ],
)
def test_threads_that_have_worked_are_counted(
    reported: int,
    working: int,
    seconds_for_all: float,
    counted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    monkeypatch.setattr(threads, "_SECONDS", seconds_for_all)
    # Ten times what a thread that has worked must have used.
    monkeypatch.setattr(threads, "_MOST_PROCESSOR_SECONDS", 0.5)

    with TorchWithThreads(reported=reported, working=working) as torch:
        assert threads.count_busy_threads(torch) == counted
