"""What programs of healthy images look for and do not find (`python -m tools.lookups`): `origin` lets no file be
there."""

import fnmatch
import json

import pytest

from images.planning import expectations, plan
from tests.support.sources import SOURCES
from tools import lookups
from validate.checks.static import owners

TABLE = json.loads(lookups.TABLE.read_text(encoding="utf-8"))
USERS = ("/workspace", "/home/trainer", "/root")
"""Folders that hygiene/leftovers and `environment` look into; the working directory is where users put their files."""
EXCUSES = (*expectations.GENERATED, *expectations.LINKS, *expectations.FOLDERS)


def _overlap(one: str, other: str) -> bool:
    return fnmatch.fnmatchcase(one.replace("*", "x"), other) or fnmatch.fnmatchcase(other.replace("*", "x"), one)


@pytest.mark.parametrize("asked", [one for one in TABLE["asked"] if not one.startswith(USERS)])
def test_nothing_is_excused_where_a_program_looks(asked: str) -> None:
    found = [excuse for excuse in EXCUSES if _overlap(asked, excuse)]
    assert not found, f"{', '.join(TABLE['asked'][asked])} would read it"
    assert not f"{asked}/".startswith(tuple(f"{one}/" for one in owners._NEVER))


def test_the_table_is_of_stacks_that_there_are_and_says_who_asks() -> None:
    assert {str(one.image.name) for one in plan.plan(SOURCES) if one.image} >= set(TABLE["images"])
    assert set().union(*TABLE["asked"].values()) == lookups.PROGRAMS.keys()
    assert list(TABLE["asked"]) == sorted(TABLE["asked"])
    assert lookups.compact(TABLE["asked"]) == TABLE["asked"], "compact again"


TRACE = """12 openat(AT_FDCWD, "/etc/ld.so.preload", O_RDONLY) = -1 ENOENT (No such file or directory)
12 access("/lib/x86_64-linux-gnu/glibc-hwcaps", R_OK) = -1 ENOENT (No such file or directory)
12 openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3
12 stat("/proc/self/no", 0x7ff) = -1 ENOENT (No such file or directory)
12 newfstatat(AT_FDCWD, "/a/b/../../usr/local/cuda-12.6/bin/gcc", 0x7ff, 0) = -1 ENOENT (No such file or directory)
12 readlink("relative", 0x7ff, 4095) = -1 ENOENT (No such file or directory)
"""


def test_a_trace_gives_the_paths_that_were_not_there() -> None:
    found = set(map(lookups.general, lookups.asked_for(TRACE)))
    assert found == {"/etc/ld.so.preload", "/usr/lib/x86_64-linux-gnu/glibc-hwcaps", "/usr/local/cuda-*/bin/gcc"}
    many = {f"/usr/share/locale/{name}/x.mo": ["git"] for name in "abcdef"}
    assert lookups.compact({**many, "/etc/a": ["ssh"]}) == {"/etc/a": ["ssh"], "/usr/share/locale/*": ["git"]}
