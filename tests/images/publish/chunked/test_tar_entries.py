"""A tar taken apart: what Go reads in a header, and what is refused because the two could differ."""

from __future__ import annotations

import base64
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.publish.chunked.tar_entries import Payload, Raw, TarEntry, TarScanner, UnknownTarError
from tests.support.tars import LONG, tar


def scanned(content: bytes, size: int = 1 << 20) -> list[Raw | Payload | TarEntry]:
    scanner = TarScanner()
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    found = [event for piece in pieces for event in scanner.feed(piece)]
    scanner.finish()
    return found


def entries(content: bytes) -> list[TarEntry]:
    return [event for event in scanned(content) if isinstance(event, TarEntry)]


def whole(events: Sequence[Raw | Payload | TarEntry]) -> bytes:
    return b"".join(event.content for event in events if not isinstance(event, TarEntry))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_each_kind_of_entry_is_read(form: int) -> None:
    long = LONG if form != tarfile.USTAR_FORMAT else "d" * 90 + "/" + "n" * 90
    content = tar(
        ("d", {"type": tarfile.DIRTYPE, "mode": 0o1777, "mtime": 1700000000}),
        (long, {"content": b"x" * 513, "uid": 7, "gid": 8}),
        ("empty", {}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "../" + long[:95]}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "empty"}),
        ("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("disk", {"type": tarfile.BLKTYPE, "devmajor": 8}),
        ("pipe", {"type": tarfile.FIFOTYPE}),
        form=form,
    )
    assert entries(content) == [
        TarEntry(kind="dir", name="d/", mode=0o1777, modified="2023-11-14T22:13:20Z"),
        TarEntry(kind="reg", name=long, mode=0o644, size=513, uid=7, gid=8, modified="1970-01-01T00:00:00Z"),
        TarEntry(kind="reg", name="empty", mode=0o644, modified="1970-01-01T00:00:00Z"),
        TarEntry(kind="symlink", name="link", mode=0o644, linkname="../" + long[:95], modified="1970-01-01T00:00:00Z"),
        TarEntry(kind="hardlink", name="hard", mode=0o644, linkname="empty", modified="1970-01-01T00:00:00Z"),
        TarEntry(kind="char", name="null", mode=0o644, device=(1, 3), modified="1970-01-01T00:00:00Z"),
        TarEntry(kind="block", name="disk", mode=0o644, device=(8, 0), modified="1970-01-01T00:00:00Z"),
        TarEntry(kind="fifo", name="pipe", mode=0o644, modified="1970-01-01T00:00:00Z"),
    ]


def test_a_long_name_of_a_folder_keeps_its_slash() -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        assert [one.name for one in entries(tar((LONG, {"type": tarfile.DIRTYPE}), form=form))] == [f"{LONG}/"]


def test_extended_records_count_as_go_takes_them() -> None:
    records = {
        "mtime": "1700000000.123456789012",
        "atime": "1700000000.500000000",
        "SCHILY.xattr.user.note": "a=b\n",
        "SCHILY.xattr.user.none": "",
        "comment": "not told",
        "uid": "3000000",
        "linkpath": "",
    }
    (found,) = entries(tar(("größe", {"pax_headers": records})))
    assert (found.name, found.uid, found.linkname) == ("größe", 3000000, "")
    assert (found.modified, found.accessed, found.changed) == (
        "2023-11-14T22:13:20.123456789Z",
        "2023-11-14T22:13:20.5Z",
        "",
    )
    assert found.xattrs == {"user.note": base64.b64encode(b"a=b\n").decode(), "user.none": ""}


@given(st.integers(1, 3000), st.lists(st.integers(0, 1200), max_size=6))
def test_the_pieces_of_any_reader_give_the_same(size: int, sizes: list[int]) -> None:
    content = tar(*((f"{number:03}" * 40, {"content": bytes([number]) * one}) for number, one in enumerate(sizes)))
    found = scanned(content, size)
    assert whole(found) == content
    assert [event for event in found if isinstance(event, TarEntry)] == entries(content)
    payloads: dict[str, bytes] = {}
    for event in found:
        if isinstance(event, TarEntry):
            payloads[event.name] = b""
        elif isinstance(event, Payload):
            payloads[next(reversed(payloads))] += event.content
    assert [len(one) for one in payloads.values()] == sizes


@pytest.mark.parametrize(
    ("seconds", "told"),
    [("-1.5", "1969-12-31T23:59:58.5Z"), ("-0.25", "1969-12-31T23:59:59.75Z"), ("-2", "1969-12-31T23:59:58Z")],
)
def test_a_time_before_1970_is_read_as_go_does(seconds: str, told: str) -> None:
    (found,) = entries(tar(("a", {"pax_headers": {"mtime": seconds}})))
    assert found.modified == told


@pytest.mark.parametrize("form", ["gnu", "posix", "oldgnu"])
def test_names_that_gnu_tar_cuts_within_a_character_are_whole(tmp_path: Path, form: str) -> None:
    for length in (92, 93, 94):
        (tmp_path / ("a" * length + "é" * 30)).touch()
        (tmp_path / f"s{length}").symlink_to("t" * (length + 5) + "éé")
    command = ["tar", f"--format={form}", "--sort=name", "-cC", str(tmp_path), "."]
    found = entries(subprocess.run(command, check=True, capture_output=True).stdout)
    assert {one.name for one in found} == {"./", *(f"./{path.name}" for path in tmp_path.iterdir())}
    assert {one.linkname for one in found if one.linkname} == {"t" * (length + 5) + "éé" for length in (92, 93, 94)}


def test_what_gnu_tar_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ("n" * 150)).write_bytes(b"x" * 1000)
    (tmp_path / "s").symlink_to("d")
    os.mkfifo(tmp_path / "p")
    for form in ("gnu", "posix", "ustar"):
        command = ["tar", f"--format={form}", "--sort=name", "-cC", str(tmp_path), "."]
        if form == "ustar":
            command.insert(1, "--exclude=nnn*")
        content = subprocess.run(command, check=True, capture_output=True).stdout
        assert whole(scanned(content)) == content
        names = ["./", "./d/", f"./d/{'n' * 150}", "./p", "./s"]
        assert [one.name for one in entries(content)] == [one for one in names if form != "ustar" or "nnn" not in one]


EMPTY_EXTENSION = tarfile.TarInfo("x")
EMPTY_EXTENSION.type = tarfile.XHDTYPE
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (tar(("a", {}), ("./a", {})), "./a is there twice"),
        (tar(("a", {"content": b"x" * 600}))[:1024], "it ends within an entry"),
        (tar(("a" * 200, {}))[:1024], "it ends within an entry"),
        (tar(("a", {"pax_headers": SPARSE})), r"it has a sparse file \(GNU.sparse.major\)"),
        (tar(("a", {"type": tarfile.CONTTYPE})), "it has an entry of type b'7'"),
        (tar(("a", {"type": tarfile.AREGTYPE})), "it has an entry of type"),
        (tar(("a", {"pax_headers": {"mtime": "1.x"}})), "1.x is no time"),
        (tar(("a", {"pax_headers": {"mtime": "999999999999"}})), "no time of the years 1 to 9999"),
        (tar(("a", {"pax_headers": {"uid": "1_0"}})), "uid 1_0 is no number"),
        (tar(("a", {}))[:512].replace(b"0000644", b"0000645") + bytes(1024), "it has a header that can't be read"),
        (tar(("a", {}))[:512].replace(b"ustar\x0000", b"ustar\x0001") + bytes(1024), "neither POSIX nor plain GNU"),
        (tar(("a", {}))[:512] + bytes(512) + tar(("b", {})), "an empty block is followed by more entries"),
        (EMPTY_EXTENSION.tobuf() + bytes(1024), "it has an extended header of 0 bytes"),
        (b"no tar" * 400, "neither POSIX nor plain GNU"),
        (tar(("\udcff", {}), form=tarfile.GNU_FORMAT), "is not UTF-8"),
        (tar(("s", {"type": tarfile.SYMTYPE, "linkname": "\udcff"}), form=tarfile.GNU_FORMAT), "is not UTF-8"),
    ],
)
def test_what_podman_might_read_otherwise_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(UnknownTarError, match=why):
        scanned(content)


def test_zeros_after_the_end_are_kept() -> None:
    content = tar(("a", {"content": b"x"})) + bytes(10240) + b"and more"
    assert whole(scanned(content)) == content
