"""bytecode: bytecode is compiled again and compared; what was found right before is not."""

import marshal
import opcode
import py_compile
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.support.judging import fails, judge_claim
from validate.checks.cpu import bytecode
from validate.claims import Claim, Tier
from validate.environment import installed
from validate.judging import Finding, Status

CLAIM = Claim(
    check="bytecode", subject="sources", tier=Tier.CPU, probe="cpu.bytecode", statement="", expect={"known": {}}
)


def package(site: Path) -> Path:
    """A distribution of one module with its bytecode. The module."""
    source = site / "small.py"
    source.write_text("def two(a):\n    return a + 1\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    info = site / "small-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: small\nVersion: 1.0\n")
    (info / "RECORD").write_text("small.py,sha256=x,1\nsmall-1.0.dist-info/RECORD,,\n")
    return source


def compared(site: Path, known: dict[str, list[str]] | None = None) -> Any:
    return bytecode.compare([str(site)], installed.distributions([str(site)]), known or {})


def judged(evidence: object) -> Finding:
    return judge_claim(CLAIM, evidence)  # type: ignore[arg-type]


def test_bytecode_of_its_source_passes_and_need_not_be_compiled_twice(tmp_path: Path) -> None:
    assert judged(compared(tmp_path)).status is Status.FAIL, "there is none"
    package(tmp_path)
    first = compared(tmp_path)
    assert (first["files"], first["compiled"], judged(first).status) == (1, 1, Status.PASS)
    second = compared(tmp_path, {"small": [first["digests"]["small"]]})
    assert (second["files"], second["compiled"], judged(second).status) == (1, 0, Status.PASS)


@pytest.mark.parametrize("known", [False, True])
def test_bytecode_of_another_source_is_named(tmp_path: Path, known: bool) -> None:
    """Also where the digest of what it should be is known."""
    source = package(tmp_path)
    digests = {"small": [compared(tmp_path)["digests"]["small"]]} if known else {}
    kept = source.read_text()
    source.write_text("def two():\n    return 3\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_text(kept)
    found = compared(tmp_path, digests)
    assert found["digests"] == {}
    verdict = judged(found)
    assert verdict.status is Status.FAIL
    assert "is not what its source compiles to" in verdict.reason and "small.cpython" in verdict.reason


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda source: source.unlink(), "without a source"),
        (lambda source: source.write_text("def"), "can't be compiled"),
        (lambda source: next(source.parent.glob("__pycache__/*")).write_bytes(b"0" * 20), "not what its source"),
        (
            lambda source: next(source.parent.glob("__pycache__/*")).rename(source.parent / "__pycache__/a.pyc"),
            "no name",
        ),
    ],
)
def test_bytecode_that_can_not_be_its_sources_is_named(tmp_path: Path, spoil: object, words: str) -> None:
    source = package(tmp_path)
    spoil(source)  # type: ignore[operator]
    assert words in judged(compared(tmp_path)).reason


def nested(body: bytes, **changed: Any) -> bytes:
    code = marshal.loads(body)
    constants = (one.replace(**changed) if isinstance(one, CodeType) else one for one in code.co_consts)
    return marshal.dumps(code.replace(co_consts=tuple(constants)))


ADD = bytes([opcode.opmap["BINARY_OP"], 0])
FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "stack": lambda body: nested(body, co_stacksize=900),
    "file": lambda body: nested(body, co_filename="/other.py"),
    "name": lambda body: nested(body, co_qualname="x"),
    "caches": lambda body: body.replace(ADD + b"\0\0", ADD + b"\7\7"),
    "more": lambda body: body + b"x",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_bytecode_that_equals_its_sources_and_runs_otherwise_is_named(tmp_path: Path, forgery: str) -> None:
    package(tmp_path)
    file = next(tmp_path.glob("__pycache__/*"))
    held = file.read_bytes()
    file.write_bytes(held[:16] + FORGERIES[forgery](held[16:]))
    fails(judged(compared(tmp_path)), "is not what its source compiles to")


def test_bytecode_that_shares_no_value_is_its_sources(tmp_path: Path) -> None:
    source, file = package(tmp_path), next(tmp_path.glob("__pycache__/*"))
    source.write_text("""x = (1, -2, 3**40, 1.5, -0.0, 2j, b"b", "é", None, True, ..., (1, (2,)), "a b", "a b")
def f(a, *, b=1 << 90):
    return lambda: a in {"x", "y", 1} or [a for a in b]
""")
    code = compile(source.read_text(), str(source), "exec", dont_inherit=True)
    file.write_bytes(file.read_bytes()[:16] + marshal.dumps(code, 2))
    assert judged(compared(tmp_path)).status is Status.PASS
