"""Layers count as equal if their files are, whichever engine and store has written them."""

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from images.engine import EngineError, layers
from images.engine.classic_store import find_private_file
from images.engine.containerd_store import read_blob
from images.engine.stored_layer import StoredLayer, layer_errors
from tests.support.stored_layers import (
    classic_layer,
    containerd_layer,
    files,
    member,
    tar_of,
)

BELOW = files("etc/", "etc/.pwd.lock=", "etc/passwd=root", "usr/", "usr/include/")
WALKED = files("a/", "a/x=1", "a.h=2", "b=3")
NOBODY = 65534
ZSTD = b"\x28\xb5\x2f\xfd and so on"
STORES = {"classic": classic_layer, "containerd": containerd_layer}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=STORES)
def in_store(request: pytest.FixtureRequest) -> Callable[[Path, bytes], StoredLayer]:
    store: Callable[[Path, bytes], StoredLayer] = STORES[request.param]
    return store


def test_each_store_gives_the_tar_that_it_got(tmp_path: Path, in_store: Any) -> None:
    tar = tar_of([*WALKED, (member("d\udce9", "latin"), "latin")])
    layer = in_store(tmp_path, tar)
    assert b"".join(layer.tar()) == tar
    assert b"".join(layer.tar_of(layer.read_tar())) == tar


def test_each_store_lists_the_same_entries(tmp_path: Path) -> None:
    tar = tar_of(files("a/", "a/x=1", "c=1", "empty="))
    classic = classic_layer(tmp_path / "classic", tar).entries()
    containerd = containerd_layer(tmp_path / "containerd", tar)
    listed = containerd.entries()
    assert [entry._replace(content="") for entry in classic] == [
        entry._replace(content="") for entry in listed
    ]
    for entries in (classic, listed):
        assert entries[1].content == entries[2].content != entries[3].content
    containerd.blob.unlink()
    assert containerd.entries() == listed, "they are cached"


def test_each_store_reads_hidden_files(tmp_path: Path, in_store: Any) -> None:
    layer = in_store(tmp_path, tar_of(files("a/", "a/x=12345", "b=6")))
    assert dict(layer.read_files(["a/x", "b"], 3)) == {"a/x": b"123", "b": b"6"}


def test_each_store_knows_how_large_files_are(tmp_path: Path, in_store: Any) -> None:
    layer = in_store(tmp_path, tar_of(files("a/", "a/x=12345", "b=6", "empty=")))
    assert layer.file_sizes() == {"a/x": 5, "b": 1}


def test_a_layer_in_the_order_of_paths_counts_as_the_one_in_the_order_of_folders(
    tmp_path: Path, in_store: Any
) -> None:
    by_path = in_store(tmp_path, tar_of(sorted(WALKED, key=lambda pair: pair[0].name)))
    walked = containerd_layer(tmp_path / "walked", tar_of(WALKED))
    assert by_path.diff_id != walked.diff_id
    assert layers.canonical_diff_id(by_path) == walked.diff_id
    assert layers.canonical_diff_id(walked) == walked.diff_id


# What the classic store writes of a step, and what containerd's writes of the same step.
CLASSIC = [
    *files("etc/", "etc/.pwd.lock=", "etc/passwd=root trainer", "usr/", "usr/include/"),
    *files("usr/include/new/", "usr/include/new/.wh..wh..opq=", "usr/include/new/a.h=1"),
]
CONTAINERD = [
    *files("etc/", "etc/passwd=root trainer", "usr/", "usr/include/"),
    *files("usr/include/new/", "usr/include/new/a.h=1"),
]


def test_what_changes_nothing_does_not_tell_the_stores_apart(tmp_path: Path) -> None:
    classic_base = classic_layer(tmp_path / "1", tar_of(BELOW))
    classic = classic_layer(tmp_path / "2", tar_of(CLASSIC))
    containerd_base = containerd_layer(tmp_path / "3", tar_of(BELOW), compressed=False)
    containerd = containerd_layer(tmp_path / "4", tar_of(CONTAINERD))
    assert layers.canonical_diff_id(classic) != layers.canonical_diff_id(containerd)

    change = layers.change_digest(classic, [classic_base])

    assert change == layers.change_digest(containerd, [containerd_base])
    # A recorded layer is found by it; one whose diff ID is known is not read.
    known = {classic.diff_id: "recorded", change: "recorded", containerd_base.diff_id: "base"}
    containerd_base.entries()
    found = layers.canonical_diff_ids(
        {layer.diff_id: layer for layer in (containerd_base, containerd)}, known, "image"
    )
    assert found == {containerd_base.diff_id: "base", containerd.diff_id: "recorded"}


@pytest.mark.parametrize(
    "changed",
    [
        files("etc/passwd=other"),
        [(member("etc/passwd", "root trainer", mode=0o600), "root trainer")],
        [(member("etc/passwd", "root trainer", time=1), "root trainer")],
        files("etc/passwd=root trainer", "etc/.wh..pwd.lock="),
        files("etc/passwd=root trainer", "new="),
        files("etc/passwd/"),
    ],
    ids=["content", "mode", "time", "removed", "added", "kind"],
)
def test_any_change_of_a_file_is_another_change(
    tmp_path: Path, in_store: Any, changed: list[tuple[tarfile.TarInfo, str]]
) -> None:
    base = in_store(tmp_path / "base", tar_of(BELOW))
    before = in_store(tmp_path / "before", tar_of(files("etc/passwd=root trainer")))
    after = in_store(tmp_path / "after", tar_of(changed))
    assert layers.change_digest(before, [base]) != layers.change_digest(after, [base])


def test_capabilities_of_a_file_count(tmp_path: Path) -> None:
    plain, capable = member("ping", "1"), member("ping", "1")
    capable.pax_headers = {"SCHILY.xattr.security.capability": "x"}
    digests = set()
    for number, info in enumerate((plain, capable)):
        layer = containerd_layer(tmp_path / str(number), tar_of([(info, "1")]))
        digests.add(layers.change_digest(layer, []))
    assert len(digests) == 2


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_a_damaged_blob_is_an_error_of_the_engine(tmp_path: Path, damage: str) -> None:
    layer = containerd_layer(tmp_path, tar_of(files("a=1")))
    content = layer.blob.read_bytes()
    contents = {
        "cut": content[:-30],
        "zeros": content[:20] + bytes(len(content) - 20),
    }
    layer.blob.write_bytes(contents[damage])
    with pytest.raises(EngineError, match="a layer can't be read"), layer_errors("image"):
        layer.entries()
    with pytest.raises(EngineError, match="a layer can't be read"), layer_errors("image"):
        b"".join(read_blob(iter([contents[damage]])))


def test_a_file_of_the_store_that_cannot_be_read_is_damage_and_no_broken_connection(
    tmp_path: Path,
) -> None:
    layer = containerd_layer(tmp_path, tar_of(files("a=1")))
    layer.blob.unlink()
    with pytest.raises(EngineError) as missing, layer_errors("image"):
        layer.read_tar()
    # Reading this file's first bytes gives EIO, like a broken disk.
    layer.blob.symlink_to("/proc/self/mem")
    with pytest.raises(EngineError) as broken, layer_errors("image"):
        layer.read_tar()

    (missing_problem,), (broken_problem,) = missing.value.problems, broken.value.problems
    cause = f"a layer can't be read: {layer.blob}: No such file or directory"
    assert missing_problem.cause == cause
    assert broken_problem.cause == "a layer can't be read: Input/output error"
    for problem in (missing_problem, broken_problem):
        assert "`docker image rm`" in problem.then


def test_a_full_disk_of_temporary_files_is_named_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = containerd_layer(tmp_path, tar_of(files("a=1")))
    with Path("/dev/full").open("w+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full)

        with pytest.raises(EngineError) as error, layer_errors("image"), layer.contents():
            pass

    (problem,) = error.value.problems
    folder = tempfile.gettempdir()
    assert problem.cause == f"a layer can't be unpacked in {folder}: No space left on device"
    assert "TMPDIR" in problem.then


def test_a_broken_connection_while_layers_are_read_is_said_to_be_one() -> None:
    errors = (requests.exceptions.ConnectionError("gone"), ConnectionResetError(104, "reset"))
    for raised in errors:
        with pytest.raises(EngineError) as error, layer_errors("image"):
            raise raised
        assert "the connection to the engine broke" in str(error.value)


def test_a_layer_in_zstd_is_no_damage_and_another_store_has_it_unpacked() -> None:
    with pytest.raises(EngineError, match="compressed with zstd") as error, layer_errors("image"):
        b"".join(read_blob(iter([ZSTD])))
    assert "classic store" in error.value.problems[0].then
    assert "damaged" not in error.value.problems[0].then


def test_a_file_that_only_another_user_may_read_keeps_the_layers_from_being_read() -> None:
    """As in the store of a rootless engine, where each user of an image is another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        layer = classic_layer(Path(folder), tar_of(files("a/", "a/open=1", "a/private=2")))
        (layer.files / "a/private").chmod(0)

        child = os.fork()
        if child == 0:
            # Root may read it all the same.
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            os._exit(0 if find_private_file(layer) == "a/private" else 1)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (layer.files / "a/private").chmod(0o644)
        find_private_file.cache_clear()
        assert find_private_file(layer) == ""
