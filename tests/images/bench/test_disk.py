"""Which file systems remember what was deleted."""

from pathlib import Path

import pytest

from images.bench import disk

MOUNTS = """\
proc /proc proc rw 0 0
/dev/vda / ext4 rw 0 0
/dev/mapper/vg-a /data ext4 rw 0 0
/dev/vdb /data/docker xfs rw 0 0
/dev/vdb /over ext4 rw 0 0
tmpfs /over tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "journals", "told"),
    [
        ("/var/lib/docker", [], True),
        ("/var/lib/docker", ["vda-8"], False),
        ("/var/lib/docker", ["vdaa-8"], True),
        ("/data", ["vda-8"], True),
        ("/data", ["vg-a-8"], False),
        ("/data/docker/overlay2", [], False),
        ("/over/x", [], False),
        ("/database", ["vda-8"], False),
    ],
)
def test_ext4_without_a_journal_remembers(folder: str, journals: list[str], told: bool) -> None:
    assert disk.remembers(Path(folder), MOUNTS, journals) is told


def test_what_is_mounted_nowhere_remembers_nothing() -> None:
    assert not disk.remembers(Path("/x"), "", [])
