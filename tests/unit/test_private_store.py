"""The private engine's store on the disk: what is lost in it, and how it goes."""

from pathlib import Path

import pytest

from images import private_engine, private_store


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


def test_discarded_is_gone_and_so_is_what_an_earlier_call_left(home: Path) -> None:
    (home / "discarded-earlier" / "data").mkdir(parents=True)
    (home / "dockerd.log").touch()
    private_store.discard(home)
    assert [path.name for path in home.iterdir()] == ["dockerd.log"]
    private_store.discard(home)


def test_a_deletion_cut_short_leaves_no_half_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(_folder: Path, ignore_errors: bool = False) -> None:
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


def test_mounts_below_come_innermost_first() -> None:
    mountinfo = (
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "46 27 254:0 /x /home/a\\040b/data rw shared:3 - ext4 /dev/vda rw\n"
        "47 46 0:40 / /home/a\\040b/data/overlay2/l/merged rw - overlay overlay rw\n"
        "48 27 254:0 / /home/a\\040bc rw - ext4 /dev/vda rw\n"
    )
    assert private_store.mounted_below(mountinfo, Path("/home/a b")) == [
        "/home/a b/data/overlay2/l/merged",
        "/home/a b/data",
    ]
