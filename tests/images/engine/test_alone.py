"""Which lock a piece of work on an engine takes, and what a person is told who can't have it."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from images.engine import Engine
from images.engine.active import ActiveWork
from images.engine.client import lock_file
from images.engine.docker_types import VersionResponse
from images.engine.facts import engine_facts
from images.errors import UserError

DOCKER: VersionResponse = {"Version": "20.10.24", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}
FACTS = engine_facts("unix:///var/run/docker.sock", DOCKER, {"DockerRootDir": "/var/lib/docker"})


def test_machines_that_share_a_home_do_not_wait_for_each_others_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has its engine's data in /var/lib/docker. An engine elsewhere is one for all of them."""
    own, shared = replace(FACTS, local=True), replace(FACTS, local=False, url="tcp://builder:2376")
    locks: dict[str, list[Path]] = {}
    for name in ("n1", "n2"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        locks[name] = [lock_file(own, "build a"), lock_file(own, "build b"), lock_file(shared, "build a")]
    assert len({*locks["n1"], *locks["n2"]}) == 5 and locks["n1"][2] == locks["n2"][2]


def test_who_can_have_no_lock_is_told_which_setting_moves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "truetag").write_text("a file where the folder of caches should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = Engine.__new__(Engine)
    engine.facts, engine._active = FACTS, ActiveWork(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="export XDG_CACHE_HOME") as told, engine.alone("build a", lambda: None):
        pass
    assert told.value.problems[0].where.startswith(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(FileExistsError, match="of the work"), engine.alone("build a", lambda: None):
        raise FileExistsError("of the work itself")
