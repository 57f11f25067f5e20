"""The private engine's pure parts, and its store on the disk: what is lost in it, and how it goes.

Starting one needs a machine without Docker: `nox -s tests` on one does that.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engine import private_engine
from images.engine.client import Engine, private_home
from images.engine.private_engine import bridge, free_subnet, mac_address
from images.errors import UserError


def test_the_bridge_takes_a_subnet_that_is_free() -> None:
    assert free_subnet([]) == "172.31.200.0/24"
    assert free_subnet(["172.31.0.0/16", "172.30.200.128/25", "10.0.0.0/8"]) == "172.29.200.0/24"
    with pytest.raises(UserError, match="every subnet"):
        free_subnet(["172.16.0.0/12"])


def test_each_engine_has_a_bridge_of_its_own() -> None:
    one, other = (
        bridge(Path(home) / "truetag" / "engine") for home in ("/home/me/.cache", "/tmp/cache")
    )
    assert one != other and len(one) <= 15


@given(st.text(max_size=40))
def test_a_bridge_has_a_unicast_mac_address_of_local_use(home: str) -> None:
    octets = [int(octet, 16) for octet in mac_address(Path("/", home)).split(":")]
    assert len(octets) == 6
    assert octets[0] & 0b11 == 0b10
    assert (
        mac_address(Path("/", home))
        == mac_address(Path("/", home))
        != mac_address(Path("/", home, "other"))
    )


def test_too_long_a_path_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 90)))
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        private_engine._start()
    assert not (private_home() / "docker.sock").exists()


class EngineWithOrphan(Engine):
    def __init__(self) -> None:
        """Connect to nothing."""

    def sweep(self) -> tuple[str, ...]:
        return ("confident_pike",)


def test_what_is_removed_is_said_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(private_engine, "connect", lambda _url: EngineWithOrphan())

    private_engine.open_engine(None, on_progress=said.append)

    assert said == ["removed containers of killed truetag commands: confident_pike"]


def test_nothing_runs_nothing_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert private_engine.stop() is False
    (tmp_path / "truetag" / "engine" / "dockerd.pid").write_text("1")  # another process's number
    assert private_engine.stop() is False


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store as overlay2 lays it out: a record of each layer, and the layer's folder."""
    for layer in ("one", "two"):
        record = tmp_path / "data/image/overlay2/layerdb/sha256" / f"chain-of-{layer}"
        record.mkdir(parents=True)
        (record / "cache-id").write_text(layer)
        (tmp_path / "data/overlay2" / layer / "diff").mkdir(parents=True)
    return tmp_path


def test_a_deletion_cut_short_leaves_no_half_store_and_the_next_call_deletes_what_it_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(_folder: Path, **_options: object) -> None:
        raise KeyboardInterrupt

    (home / "dockerd.log").touch()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(private_engine.shutil, "rmtree", cut_short)
        private_engine.discard(home)
    assert not (home / "data").exists() and len(list(home.iterdir())) == 2
    private_engine.discard(home)
    assert [path.name for path in home.iterdir()] == ["dockerd.log"]


def test_nothing_is_deleted_while_something_is_mounted_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []
    monkeypatch.setattr(private_engine, "mounts_below", lambda store: [store, store / "a"])
    monkeypatch.setattr(
        private_engine.subprocess, "run", lambda words, **_: called.append(words[-1])
    )
    with pytest.raises(UserError, match="is mounted"):
        private_engine.discard(home)
    assert (home / "data").exists() and called == [home / "data/a", home / "data"], (
        "the upper one first"
    )


def test_mounts_are_found_by_their_paths() -> None:
    assert private_engine.mounts_below(Path("/proc")) and not private_engine.mounts_below(
        Path("/proc/self/none")
    )


def test_what_cannot_be_deleted_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path, onerror: Callable[..., None]) -> None:
        onerror(os.unlink, f"{folder}/x", (OSError, OSError("read-only file system"), None))

    monkeypatch.setattr(private_engine.shutil, "rmtree", refused)
    with pytest.raises(UserError, match=r"x: read-only file system(.|\n)*engine -- wipe` deletes"):
        private_engine.discard(home)
