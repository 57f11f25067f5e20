"""Who waits for whom on an engine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from images.engine import Engine
from images.engine.active import ActiveWork
from images.engine.docker_types import VersionResponse
from images.engine.facts import engine_facts

DOCKER: VersionResponse = {"Version": "20.10.24", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}


class AtWorkError(Exception):
    """Another one is."""


def test_machines_that_share_a_home_do_not_wait_for_each_others_engines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every node has its engine's data in /var/lib/docker."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = Engine.__new__(Engine)
    engine.facts = replace(engine_facts("unix:///d", DOCKER, {"DockerRootDir": "/var/lib/docker"}), local=True)
    engine._active = ActiveWork(None)  # type: ignore[arg-type]

    def at_work() -> None:
        raise AtWorkError

    @contextmanager
    def work_on(machine: str) -> Iterator[None]:
        monkeypatch.setattr(socket, "gethostname", lambda: machine)
        with engine.alone("build a", at_work):
            yield

    with work_on("n1"), work_on("n2"), pytest.raises(AtWorkError), work_on("n1"):
        pytest.fail("two build one name on one engine")
