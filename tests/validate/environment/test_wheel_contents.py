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
from validate.environment.wheel_contents import Installed

PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), min_size=1, max_size=20)
ROWS = st.dictionaries(PATHS, st.text("abcdef0123", min_size=4, max_size=8), min_size=1, max_size=20)


def rows_of(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read("small-1.0.dist-info/RECORD").decode()
    return wheel_contents.of_wheel(csv.reader(io.StringIO(text)))


def read(site: Path, environment: Path) -> Installed:
    (distribution,) = installed.distributions([str(site)])
    return wheel_contents.of_installed(distribution, os.path.realpath(environment))


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
    found = read(site, environment)
    assert dict(found.rows) == rows_of(wheel)
    assert found.launchers == ()


@pytest.mark.parametrize(("file", "content", "strange"), cases(__file__, "changed"))
def test_a_file_that_was_changed_with_its_row_is_named(tmp_path: Path, file: str, content: str, strange: str) -> None:
    wheel, environment = wheels.make(tmp_path), wheels.environment(tmp_path / "venv")
    site = wheels.install(wheel, environment, by="uv")
    folder = os.path.realpath(environment / "bin")
    path = Path(file.format(site=site, bin=environment / "bin")).resolve()
    rewrite(site, path, content.replace("{bin}", folder).encode())
    found, known = read(site, environment), wheel_contents.contents(rows_of(wheel))
    assert wheel_contents.contents(found.rows).digest != known.digest
    assert wheel_contents.strange(found.rows, known.tags) == [strange]
    assert found.launchers == ((f"{folder}/small",) if strange == ":bin/small" else ())


def test_a_file_that_was_taken_out_with_its_row_is_counted(tmp_path: Path) -> None:
    wheel, environment = wheels.make(tmp_path), wheels.environment(tmp_path / "venv")
    site = wheels.install(wheel, environment, by="uv")
    record = next(site.glob("*.dist-info/RECORD"))
    record.write_text(re.sub(r"^small/data.txt.*\n", "", record.read_text(), flags=re.MULTILINE))
    found, known = read(site, environment), wheel_contents.contents(rows_of(wheel))
    assert wheel_contents.strange(found.rows, known.tags) == []
    assert wheel_contents.lacking(found.rows, known.tags) == 1


@given(ROWS, st.data())
def test_a_digest_is_that_of_its_rows_alone(rows: dict[str, str], data: st.DataObject) -> None:
    known = wheel_contents.contents(rows)
    assert wheel_contents.contents(dict(reversed(rows.items()))) == known
    assert (wheel_contents.strange(rows, known.tags), wheel_contents.lacking(rows, known.tags)) == ([], 0)
    changed = data.draw(st.sampled_from(sorted(rows)))
    assert wheel_contents.contents({**rows, changed: f"{rows[changed]}x"}).digest != known.digest


@given(ROWS, ROWS)
def test_long_tags_know_their_rows_and_no_others(rows: dict[str, str], others: dict[str, str]) -> None:
    knows = wheel_contents.knows(wheel_contents.long_tags(rows.items()))
    assert all(knows(path, digest) for path, digest in rows.items())
    assert not any(knows(path, digest) for path, digest in others.items() if rows.get(path) != digest)
    tags = [wheel_contents.long_tags(one.items()) for one in (rows, others)]
    both = wheel_contents.knows(wheel_contents.joined(tags))
    assert all(both(path, digest) for path, digest in (*rows.items(), *others.items()))
