"""Which engine is taken, what it is taken for, who waits for whom, and what is tried again."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from images.engine import Engine, client
from images.engine.failures import Cancelled
from images.engine.runtime import Work, engine_facts
from images.errors import UserError
from tests.support.checkout import ROOT

DOCKER = {"Version": "20.10.24", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}
PODMAN = {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}


def test_podman_is_refused() -> None:
    with pytest.raises(UserError, match="this is Podman, which runs images"):
        engine_facts("unix:///p", PODMAN, {})


def test_a_store_that_names_images_by_their_manifests_is_known() -> None:
    """What engine 29 answers after a new installation."""
    facts = engine_facts(
        "unix:///d", DOCKER, {"DriverStatus": [("driver-type", "io.containerd.snapshotter.v1")]}
    )
    assert facts.containerd_images
    assert not engine_facts(
        "unix:///d", DOCKER, {"DriverStatus": [("Backing Filesystem", "extfs")]}
    ).containerd_images


@pytest.mark.parametrize(
    ("refusal", "step"),
    [("nobody listens", "engine -- start"), ("Permission denied", "join the group `docker`")],
)
def test_dockers_sockets_are_tried_and_our_own_is_the_last(
    refusal: str, step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tried: list[str] = []

    def refuse(*, base_url: str) -> None:
        tried.append(base_url)
        raise OSError(refusal)

    monkeypatch.setattr(client, "Engine", refuse)
    with pytest.raises(UserError, match=rf"none answers(.|\n)*{step}"):
        client.connect()
    first_two = ["unix:///var/run/docker.sock", f"unix://{tmp_path}/docker.sock"]
    assert tried == [*first_two, f"unix://{client.private_home()}/docker.sock"]


class AtWorkError(Exception):
    """Another one is."""


def test_machines_of_one_home_do_not_wait_for_each_others_engines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every node has its engine's data in /var/lib/docker."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = Engine.__new__(Engine)
    engine._work = Work()
    engine.facts = replace(
        engine_facts("unix:///d", DOCKER, {"DockerRootDir": "/var/lib/docker"}), local=True
    )

    def at_work() -> None:
        raise AtWorkError

    @contextmanager
    def work_on(machine: str) -> Iterator[None]:
        monkeypatch.setattr(socket, "gethostname", lambda: machine)
        with engine.hold_lock("build a", at_work):
            yield

    with work_on("n1"), work_on("n2"), pytest.raises(AtWorkError), work_on("n1"):
        pytest.fail("two build one name on one engine")


@pytest.mark.parametrize("cancelled", [False, True])
def test_work_that_is_given_up_is_ended_and_raises_cancelled(cancelled: bool) -> None:
    work, ended = Work(), []
    with (
        pytest.raises(Cancelled if cancelled else ValueError),
        work.registered(lambda: ended.append("a"), always=False),
    ):
        if cancelled:
            work.cancel()
            assert ended == ["a"]
        raise ValueError
    assert set(ended) == {"a"}


def test_what_begins_after_cancel_is_ended_at_once() -> None:
    work, ended = Work(), []
    work.cancel()
    with pytest.raises(Cancelled), work.registered(lambda: ended.append("a"), always=False):
        pytest.fail("it began")
    assert ended == ["a"]


def test_one_module_alone_uses_what_the_sdk_keeps_private() -> None:
    private = re.compile(
        r"\b(?:sdk|_sdk|_api|api)\._[a-z]|\._auth_configs|\._raise_for_status|\._stream_helper"
    )
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "images").rglob("*.py")
        if private.search(path.read_text())
    }
    assert found == {"images/engine/client.py"}


@pytest.mark.parametrize(
    "address", ["tcp://[::1", "tcp://host:99999999", "\x1b[31m", "ftp://x", "tcp://"]
)
def test_an_address_that_cannot_be_read_gets_the_forms_of_addresses(address: str) -> None:
    with pytest.raises(UserError, match="no Docker Engine answers") as error:
        client.connect(address)

    assert "unix:///PATH, tcp://HOST:PORT or ssh://HOST" in error.value.problems[0].then


def test_a_socket_that_is_named_by_its_path_gets_its_address() -> None:
    with pytest.raises(UserError, match=r"next: write it as unix:///a\.sock"):
        client.connect("/a.sock")


def test_a_variable_that_names_a_silent_engine_can_be_unset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")

    with pytest.raises(UserError, match="no Docker Engine answers") as error:
        client.connect(None)

    assert "`unset DOCKER_HOST`" in error.value.problems[0].then


@pytest.mark.parametrize("address", ["ssh://me@builder", "ssh://me@builder:2222"])
def test_an_engine_behind_ssh_is_reached_by_the_users_own_client(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docker-py's own SSH knows neither agents nor ~/.ssh/config, and needs another package."""
    script = (
        f'#!/bin/sh\n[ "$1" != -G ] || {{ echo port 2222; exit; }}\necho "$@" >> {tmp_path}/asked\n'
    )
    (tmp_path / "ssh").write_text(script)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(
        UserError, match=rf"no Docker Engine answers(.|\n)*`docker -H {address} version`"
    ):
        client.connect(address)
    assert (tmp_path / "asked").read_text().splitlines()[
        0
    ] == "-l me -p 2222 -- builder docker system dial-stdio"
