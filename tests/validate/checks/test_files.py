"""files: every file of a distribution is as its RECORD says, and importable code has an owner."""

from pathlib import Path
from typing import Any

import pytest

from images.planning import expectations
from tests.support.judging import fails
from tests.support.site_packages import Site, measure_and_judge, static_claim
from validate.checks.static import files
from validate.environment.installed import Distribution
from validate.judging import Finding, Status

RECORDED = static_claim("files", "recorded", "files", unowned=expectations.START_FILES)


def judged() -> Finding:
    return measure_and_judge(files, RECORDED)


def test_an_environment_without_any_recorded_file_fails(site: Site) -> None:
    fails(judged(), "no installed Python package lists a single file")


def test_files_as_recorded_pass(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/__init__.py": b"", "../bin/tool": b"#!/usr/bin/python\n"})
    # Two distributions may have the same file, with the same content.
    site.install("other", "1.0", {"ns/__init__.py": b"", "ns/a.py": b""})
    site.install("third", "1.0", {"ns/__init__.py": b"", "ns/b.py": b""})

    assert judged().status is Status.PASS


def test_bytecode_may_differ_from_its_record(site: Site) -> None:
    bytecode = "sb/__pycache__/a.cpython-311.pyc"
    site.install("ships_bytecode", "1.0", {"sb/a.py": b"", bytecode: b"old"})

    site.write(bytecode, b"compiled anew")
    site.write("sb/__pycache__/b.cpython-311.pyc", b"of no RECORD")

    assert judged().status is Status.PASS


def test_a_file_that_virtualenv_writes_needs_no_owner(site: Site) -> None:
    site.install()

    site.write("_virtualenv.pth", b"import _virtualenv")

    assert judged().status is Status.PASS


def test_a_library_in_a_folder_of_bytecode_is_compared(site: Site) -> None:
    site.install("odd", "1.0", {"odd/__pycache__/a.so": b""})

    site.write("odd/__pycache__/a.so", b"which is no bytecode")

    fails(judged(), "__pycache__/a.so of odd 1.0 is altered")


def test_altered_and_missing_files_fail(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/__init__.py": b"x = 1\n", "pkg/lib.so": b"\x7fELF"})

    site.write("pkg/__init__.py", b"x = 2\n")
    (site.root / "pkg/lib.so").unlink()

    fails(judged(), "__init__.py of pkg 1.0 is altered", "pkg/lib.so of pkg 1.0 is missing")


def test_a_missing_file_whose_hash_is_damaged_fails(site: Site) -> None:
    site.install()

    record = site.root / "pkg-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "pkg/gone.py,sha256==,1\n")

    fails(judged(), "gone.py of pkg 1.0 is missing")


def test_a_file_of_two_distributions_with_different_contents_fails(site: Site) -> None:
    site.install("nccl-cu13", "2.28", {"nccl/lib.so.2": b"thirteen"})
    site.install("nccl-cu12", "2.26", {"nccl/lib.so.2": b"twelve"})

    fails(
        judged(),
        "claimed by nccl-cu12 2.26 and nccl-cu13 2.28",
        "the file is that of nccl-cu12 2.26",
    )


def test_a_padded_hash_is_that_of_the_file_and_in_no_conflict(site: Site) -> None:
    site.install("nccl-cu12", "2.26", {"nccl/lib.so.2": b"same"})
    site.install("nccl-cu13", "2.28", {"nccl/lib.so.2": b"same"})

    record = site.root / "nccl-cu13-2.28.dist-info/RECORD"
    padded = record.read_text().replace(",4\n", "=,4\n", 1)
    assert padded != record.read_text()
    record.write_text(padded)

    assert judged().status is Status.PASS


def test_a_record_that_can_not_be_read_fails(site: Site) -> None:
    site.install("one", "1.0", {"one/a.py": b""})
    site.install("two", "1.0", {"two/a.py": b""})

    (site.root / "two-1.0.dist-info/RECORD").write_bytes(b"two/a.py,\xff\n")

    fails(judged(), "two in", "has no readable RECORD")


@pytest.mark.parametrize(
    "planted", ["flash_attn/__init__.py", "zz.pth", "pkg/extra.so.1", "stale.pyc"]
)
def test_code_that_no_distribution_owns_fails(site: Site, planted: str) -> None:
    site.install()

    site.write(planted)

    fails(judged(), planted)


@pytest.mark.parametrize(
    ("settings", "folder", "is_source"),
    [
        pytest.param("project/pyproject.toml", "project", True, id="flat"),
        pytest.param("project/setup.py", "project/src", True, id="src"),
        pytest.param("project/pyproject.toml", "project/a/b", False, id="further-up"),
        pytest.param("other/pyproject.toml", "project", False, id="of-another"),
    ],
)
def test_a_source_tree_is_known_by_the_settings_of_its_project(
    tmp_path: Path, settings: str, folder: str, is_source: bool
) -> None:
    for path in (tmp_path / folder, (tmp_path / settings).parent):
        path.mkdir(parents=True, exist_ok=True)
    (tmp_path / settings).touch()

    assert files.is_source_tree(str(tmp_path / folder)) is is_source


def test_files_beside_a_package_whose_metadata_is_closed_to_this_user_are_not_strays(
    tmp_path: Path,
) -> None:
    """Its RECORD, which this user may not read, may list them: `umask 077; pip install`."""
    (tmp_path / "mine.py").touch()
    known: Any = {"version": "1", "location": str(tmp_path), "tags": (), "requires": ()}
    readable = Distribution(name="a", info=tmp_path / "a", entries=(), **known)
    closed = Distribution(name="b", info=tmp_path / "b", entries=None, readable=False, **known)

    assert list(files.find_unowned([readable])) == [f"{tmp_path}/mine.py"]
    assert list(files.find_unowned([readable, closed])) == []
