"""The private engine's pure parts. Starting one needs a machine without Docker: `nox -s tests` on one does that."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.engine import private_engine, private_socket
from images.engine.private_engine import bridge, free_subnet, is_debian, last_errors, mac_address
from images.errors import UserError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("ID=debian\n", True),
        ("ID=ubuntu\nID_LIKE=debian\n", True),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', True),
        ("ID=fedora\n", False),
        ('ID=rocky\nID_LIKE="rhel centos fedora"\n', False),
        ("", False),
    ],
)
def test_debian_and_what_is_made_from_it(text: str, answer: bool) -> None:
    assert is_debian(text) is answer


def test_the_bridge_takes_a_subnet_that_is_free() -> None:
    assert free_subnet([]) == "172.31.200.0/24"
    assert free_subnet(["172.31.0.0/16", "172.30.200.128/25", "10.0.0.0/8"]) == "172.29.200.0/24"
    with pytest.raises(UserError, match="every subnet"):
        free_subnet(["172.16.0.0/12"])


def test_each_engine_has_a_bridge_of_its_own() -> None:
    one, other = (bridge(Path(home) / "truetag" / "engine") for home in ("/home/me/.cache", "/tmp/cache"))
    assert one != other
    assert len(one) <= 15


@given(st.text(max_size=40))
def test_a_bridge_has_a_unicast_mac_address_of_local_use(home: str) -> None:
    octets = [int(octet, 16) for octet in mac_address(Path("/", home)).split(":")]
    assert len(octets) == 6
    assert octets[0] & 0b11 == 0b10
    assert mac_address(Path("/", home)) == mac_address(Path("/", home)) != mac_address(Path("/", home, "other"))


def test_the_log_tells_why_it_ended() -> None:
    log = (
        'time="2026-01-01T00:00:00Z" level=info msg="Starting up"\n'
        'time="2026-01-01T00:00:01Z" level=error msg="no iptables"\n'
        "failed to start daemon: Devices cgroup isn't mounted\n"
    )
    assert last_errors(log) == "no iptables; failed to start daemon: Devices cgroup isn't mounted"
    assert last_errors("some other words\n") == "some other words"
    assert last_errors("") == ""


def test_too_long_a_path_is_said_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 90)))
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        private_engine._start()
    assert not private_socket().exists()


def test_nothing_runs_nothing_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert private_engine.stop() is False
    (tmp_path / "truetag" / "engine" / "dockerd.pid").write_text("1")  # another process's number
    assert private_engine.stop() is False
