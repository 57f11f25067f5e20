"""A wheel's own RECORD and that of its installed files come to the same; a change shows."""

import csv
import io
import os
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wheels
from tests.support.cases import cases
from validate.environment import installed, wheel_contents

PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), min_size=1, max_size=20)
HASHES = st.text("abcdef0123", min_size=4, max_size=8)
ROWS = st.dictionaries(PATHS, HASHES, min_size=1, max_size=20)


class InstalledWheel(NamedTuple):
    """The wheel `small` in a virtual environment."""

    wheel: Path
    environment: Path
    site: Path
    """Its folder of packages."""

    @property
    def record(self) -> Path:
        return next(self.site.glob("*.dist-info/RECORD"))

    def rows_of_wheel(self) -> dict[str, str]:
        """Return path -> hash from the RECORD inside the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            record = archive.read("small-1.0.dist-info/RECORD").decode()
        return wheel_contents.rows_of_wheel(csv.reader(io.StringIO(record)))

    def rows(self) -> dict[str, str]:
        """Return path -> hash from the installed RECORD, in the form of the wheel's."""
        (distribution,) = installed.distributions([str(self.site)])
        environment = os.path.realpath(self.environment)
        return wheel_contents.rows_of_installed(distribution, environment)

    def change(self, file: Path, content: bytes) -> None:
        """Change a file and its row in RECORD, as somebody does who hides a change."""
        file.write_bytes(content)
        path = os.path.relpath(file, self.site)
        row = f"{path},{wheels.record_hash(content)},{len(content)}"
        text, count = re.subn(
            rf"^{re.escape(path)},.*$", row, self.record.read_text(), flags=re.MULTILINE
        )
        assert count == 1
        self.record.write_text(text)


def install(folder: Path, by: str = "uv") -> InstalledWheel:
    wheel = wheels.make(folder)
    environment = wheels.environment(folder / "venv")
    return InstalledWheel(wheel, environment, wheels.install(wheel, environment, by=by))


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_an_installed_wheel_has_the_rows_of_its_wheel(tmp_path: Path, installer: str) -> None:
    small = install(tmp_path, by=installer)

    assert small.rows() == small.rows_of_wheel()


def test_padding_of_a_hash_in_record_does_not_count(tmp_path: Path) -> None:
    small = install(tmp_path)

    padded = re.sub(r"(sha256=[^,]+),", r"\1=,", small.record.read_text())
    assert padded != small.record.read_text()
    small.record.write_text(padded)

    assert small.rows() == small.rows_of_wheel()


@pytest.mark.parametrize(("file", "content", "changed"), cases(__file__, "changed"))
def test_a_file_that_was_changed_with_its_row_gives_another_digest(
    tmp_path: Path, file: str, content: str, changed: str
) -> None:
    small = install(tmp_path)
    programs = small.environment / "bin"

    path = Path(file.format(site=small.site, bin=programs)).resolve()
    small.change(path, content.replace("{bin}", os.path.realpath(programs)).encode())

    rows, locked_rows = small.rows(), small.rows_of_wheel()
    assert wheel_contents.digest_of(rows) != wheel_contents.digest_of(locked_rows)
    assert [path for path, digest in rows.items() if locked_rows.get(path) != digest] == [changed]


def test_a_file_that_was_taken_out_with_its_row_gives_another_digest(tmp_path: Path) -> None:
    small = install(tmp_path)

    text = small.record.read_text()
    small.record.write_text(re.sub(r"^small/data.txt.*\n", "", text, flags=re.MULTILINE))

    digest = wheel_contents.digest_of(small.rows())
    assert digest != wheel_contents.digest_of(small.rows_of_wheel())


@given(ROWS)
def test_the_order_of_rows_does_not_change_their_digest(rows: dict[str, str]) -> None:
    reversed_rows = dict(reversed(rows.items()))

    assert wheel_contents.digest_of(reversed_rows) == wheel_contents.digest_of(rows)


@given(ROWS, st.data())
def test_another_hash_of_a_row_changes_the_digest(
    rows: dict[str, str], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(rows)))

    changed = {**rows, path: f"{rows[path]}x"}

    assert wheel_contents.digest_of(changed) != wheel_contents.digest_of(rows)
