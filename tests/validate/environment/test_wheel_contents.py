"""A wheel's own RECORD and that of its installed files come to the same; whatever differs is named."""

import csv
import io
import os
import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wheels
from tests.support.cases import cases
from validate.environment import installed, wheel_contents

PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), min_size=1, max_size=20)
ROWS = st.dictionaries(
    PATHS, st.text("abcdef0123", min_size=4, max_size=8), min_size=1, max_size=20
)


def rows_of(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read("small-1.0.dist-info/RECORD").decode()
    return wheel_contents.rows_of_wheel(csv.reader(io.StringIO(text)))


def read(site: Path, environment: Path) -> dict[str, str]:
    (distribution,) = installed.distributions([str(site)])
    return wheel_contents.rows_of_installed(distribution, os.path.realpath(environment))


def rewrite(site: Path, file: Path, content: bytes) -> None:
    """Change a file, and its row, as one who hides a change."""
    file.write_bytes(content)
    record = next(site.glob("*.dist-info/RECORD"))
    name = re.escape(os.path.relpath(file, site))
    row = f"{os.path.relpath(file, site)},{wheels.record_hash(content)},{len(content)}"
    text, count = re.subn(rf"^{name},.*$", row, record.read_text(), flags=re.MULTILINE)
    assert count == 1
    record.write_text(text)


@pytest.mark.parametrize("by", ["uv", "pip"])
def test_an_installed_wheel_is_as_its_wheel(tmp_path: Path, by: str) -> None:
    wheel, environment = wheels.make(tmp_path), wheels.environment(tmp_path / "venv")
    site = wheels.install(wheel, environment, by=by)
    assert read(site, environment) == rows_of(wheel)


def test_padding_of_a_hash_in_record_does_not_count(tmp_path: Path) -> None:
    wheel, environment = wheels.make(tmp_path), wheels.environment(tmp_path / "venv")
    site = wheels.install(wheel, environment, by="uv")

    record = next(site.glob("*.dist-info/RECORD"))
    padded = re.sub(r"(sha256=[^,]+),", r"\1=,", record.read_text())
    assert padded != record.read_text()
    record.write_text(padded)

    assert read(site, environment) == rows_of(wheel)


@pytest.mark.parametrize(("file", "content", "changed"), cases(__file__, "changed"))
def test_a_file_that_was_changed_with_its_row_gives_another_digest(
    tmp_path: Path, file: str, content: str, changed: str
) -> None:
    wheel, environment = wheels.make(tmp_path), wheels.environment(tmp_path / "venv")
    site = wheels.install(wheel, environment, by="uv")
    folder = os.path.realpath(environment / "bin")
    path = Path(file.format(site=site, bin=environment / "bin")).resolve()
    rewrite(site, path, content.replace("{bin}", folder).encode())
    found, known = read(site, environment), rows_of(wheel)
    assert wheel_contents.digest_of(found) != wheel_contents.digest_of(known)
    assert [name for name, digest in found.items() if known.get(name) != digest] == [changed]


def test_a_file_that_was_taken_out_with_its_row_gives_another_digest(tmp_path: Path) -> None:
    wheel, environment = wheels.make(tmp_path), wheels.environment(tmp_path / "venv")
    site = wheels.install(wheel, environment, by="uv")
    record = next(site.glob("*.dist-info/RECORD"))
    record.write_text(re.sub(r"^small/data.txt.*\n", "", record.read_text(), flags=re.MULTILINE))
    assert wheel_contents.digest_of(read(site, environment)) != wheel_contents.digest_of(
        rows_of(wheel)
    )


@given(ROWS, st.data())
def test_a_digest_is_that_of_its_rows_in_any_order(
    rows: dict[str, str], data: st.DataObject
) -> None:
    known = wheel_contents.digest_of(rows)
    assert wheel_contents.digest_of(dict(reversed(rows.items()))) == known
    changed = data.draw(st.sampled_from(sorted(rows)))
    assert wheel_contents.digest_of({**rows, changed: f"{rows[changed]}x"}) != known
