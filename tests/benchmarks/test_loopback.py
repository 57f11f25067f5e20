"""A registry on this machine."""

import http.client
from pathlib import Path

import bcrypt

from benchmarks import loopback
from tests.support.debian_tools import registry


def answer(host: str) -> int:
    """The status that a registry answers with."""
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("GET", "/v2/")
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_registry_with_a_login_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(f"one:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    login = {"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}
    with loopback.registry(tmp_path / "open") as host:
        assert answer(host) == 200
    assert [path.name for path in tmp_path.iterdir()] == ["htpasswd"]
    with registry(tmp_path / "closed", login) as host:
        assert answer(host) == 401
