"""The private engine's store on the disk: what is lost in it, and how it goes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from images.engine import private_engine, private_store
from images.errors import UserError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store as overlay2 lays it out: a record of each layer, and the layer's folder."""
    for layer in ("one", "two"):
        record = tmp_path / "data/image/overlay2/layerdb/sha256" / f"chain-of-{layer}"
        record.mkdir(parents=True)
        (record / "cache-id").write_text(layer)
        (tmp_path / "data/overlay2" / layer / "diff").mkdir(parents=True)
    return tmp_path


def _lose(home: Path, layer: str) -> None:
    (home / "data/overlay2" / layer / "diff").rmdir()
    (home / "data/overlay2" / layer).rmdir()


def test_a_whole_store_has_lost_nothing(home: Path) -> None:
    assert private_store.lost_layers(home) == []
    assert private_store.lost_layers(home / "not-there-yet") == []


def test_a_layer_that_is_recorded_and_gone_is_lost(home: Path) -> None:
    _lose(home, "two")
    assert private_store.lost_layers(home) == ["two"]


def test_a_record_that_a_crash_left_empty_is_a_lost_layer(home: Path) -> None:
    (home / "data/image/overlay2/layerdb/sha256/chain-of-one/cache-id").write_text("")
    assert private_store.lost_layers(home) == [""]


def test_discarded_is_gone_and_so_is_what_an_earlier_call_left(home: Path) -> None:
    (home / "discarded-earlier" / "data").mkdir(parents=True)
    (home / "dockerd.log").touch()
    private_store.discard(home)
    assert [path.name for path in home.iterdir()] == ["dockerd.log"]
    private_store.discard(home)


def test_a_deletion_cut_short_leaves_no_half_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(_folder: Path, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(private_store.shutil, "rmtree", cut_short)
    with pytest.raises(KeyboardInterrupt):
        private_store.discard(home)
    assert not (home / "data").exists()


def test_before_a_start_a_damaged_store_is_replaced_and_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_engine, "private_home", lambda: home)
    said: list[str] = []
    private_engine._mend_store(said.append)
    assert said == []
    assert (home / "data").exists()
    _lose(home, "one")
    private_engine._mend_store(said.append)
    assert "lost 1 of its layers" in said[0]
    assert not (home / "data").exists()


MOUNTINFO = """\
27 1 254:0 / / rw - ext4 /dev/vda rw
30 27 254:9 /lib/a\\040b /home/a\\040b rw shared:1 master:2 - ext4 /dev/vdb rw
46 30 254:9 /lib/a\\040b/data /home/a\\040b/data rw shared:3 - ext4 /dev/vdb rw
47 46 0:40 / /home/a\\040b/data/overlay2/l/merged rw - overlay overlay rw
48 27 254:7 / /home/a\\040bc rw - ext4 /dev/vdc rw
"""
STORE = Path("/home/a b/data")


def test_the_engines_own_mounts_are_no_bodys_else() -> None:
    every = private_store.mounts(MOUNTINFO)
    assert [str(mount.point) for mount in every][2:4] == ["/home/a b/data", "/home/a b/data/overlay2/l/merged"]
    assert list(private_store.foreign(every, STORE)) == []


@pytest.mark.parametrize(
    "line",
    [
        "49 46 254:8 / /home/a\\040b/data/overlay2 rw - ext4 /dev/vdd rw",  # another disk
        "49 46 254:9 /elsewhere /home/a\\040b/data rw - ext4 /dev/vdb rw",  # another folder of the same disk
    ],
)
def test_a_persons_own_mount_is_told_apart(line: str) -> None:
    (found,) = private_store.foreign(private_store.mounts(MOUNTINFO + line), STORE)
    assert found.kind == "ext4"


def test_a_persons_own_mount_is_never_taken_away(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"46 27 254:8 / {home}/data rw - ext4 /dev/vdd rw"
    called: list[object] = []
    monkeypatch.setattr(private_store, "mounts", lambda _text, parse=private_store.mounts: parse(line))
    monkeypatch.setattr(private_store.subprocess, "run", lambda *words, **_: called.append(words))
    with pytest.raises(UserError, match="file system of its own"):
        private_store.discard(home)
    assert (home / "data").exists() and not called


def test_what_cannot_be_deleted_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path, onerror: Callable[..., None]) -> None:
        onerror(os.unlink, f"{folder}/x", (OSError, OSError("read-only file system"), None))

    monkeypatch.setattr(private_store.shutil, "rmtree", refused)
    with pytest.raises(UserError, match=r"x: read-only file system(.|\n)*rm -rf"):
        private_store.discard(home)
