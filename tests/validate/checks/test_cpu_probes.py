"""What probes of the cpu tier measure without torch: imports, and compilers that are not there."""

from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.judging import judge_claim
from validate.checks.cpu import compiler, imports
from validate.claims import Claim, Tier
from validate.judging import Finding, Status


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

    assert finding == (Status.FAIL, "CC=/nowhere/gcc is no program in this image")


def test_an_image_without_a_compiler_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")

    finding = measure_and_judge_launcher()

    assert finding == (Status.FAIL, "no C compiler: neither gcc nor clang is on PATH")


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

    status, reason = measure_and_judge_launcher()

    assert status is Status.FAIL
    assert culprit in reason
