"""Names that moved: a wheel that has what the table says has nothing against it."""

from pathlib import Path

import pytest
import yaml

from tests.support import wheels
from tools import hints, moved_names

KNOWN = yaml.load(hints.RELEASES.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["liger_kernel"]


@pytest.fixture
def files() -> dict[str, bytes]:
    """What the newest release of a package has, by the table."""
    newest = {
        owner: " ".join(names for releases, names in ranges.items() if "<" not in releases)
        for owner, ranges in KNOWN["names"].items()
    }
    for releases, modules in KNOWN["modules"]["liger_kernel"].items():
        for one in modules.split() if "<" not in releases else ():
            newest.setdefault(one, "")
    gone = " ".join(names for releases, names in KNOWN["modules"]["liger_kernel"].items() if "<" in releases).split()
    return {f"{one.replace('.', '/')}.py": text.encode() for one, text in newest.items() if one not in gone}


def test_a_release_as_the_table_has_it_contradicts_nothing(files: dict[str, bytes], tmp_path: Path) -> None:
    newest = wheels.make(tmp_path, files, "liger_kernel", "99.0")
    assert [*moved_names.contradicted(newest)] == []
    oldest = wheels.make(tmp_path, files, "liger_kernel", "0.0.1")
    assert any(line.startswith("liger_kernel 0.0.1 has liger_kernel") for line in moved_names.contradicted(oldest))


def test_a_name_that_a_release_lacks_is_told(files: dict[str, bytes], tmp_path: Path) -> None:
    place = "liger_kernel/transformers.py"
    files[place] = files[place].replace(b"LigerSwiGLUMLP", b"\n# LigerSwiGLUMLP\n")
    assert [*moved_names.contradicted(wheels.make(tmp_path, files, "liger_kernel", "99.0"))] == [
        "liger_kernel 99.0 lacks liger_kernel.transformers.LigerSwiGLUMLP, which is in >=0.3 by the table"
    ]
