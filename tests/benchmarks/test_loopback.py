"""A registry on this machine."""

import http.client
import os
import subprocess
import sys
from pathlib import Path

import bcrypt
import pytest

from benchmarks import loopback


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
    with loopback.registry(tmp_path / "closed", auth=login) as host:
        assert answer(host) == 401
    assert [path.name for path in tmp_path.iterdir()] == ["htpasswd"]


PROGRAM = """\
#!{python}
import http.server, json, sys
host, _, port = json.load(open(sys.argv[2]))["http"]["addr"].partition(":")
http.server.HTTPServer((host, int(port)), http.server.BaseHTTPRequestHandler).serve_forever()
"""


APT = """\
#!/bin/sh
echo "$*" >>{folder}/asked
case "$*" in
*update*) touch {folder}/lists ;;
*download*) [ -e {folder}/lists ] || {{ echo "E: Unable to locate package" >&2; exit 100; }}; cp {folder}/*.deb . ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def only_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without docker-registry, whose apt-get has never updated its lists: what it was asked is in `asked`."""
    programs = tmp_path / "programs"
    made = tmp_path / "made"
    for path, text in (
        (made / "DEBIAN" / "control", "Package: docker-registry\nVersion: 1\nArchitecture: all\nMaintainer: a\n"),
        (made / "usr" / "bin" / "docker-registry", PROGRAM.format(python=sys.executable)),
        (programs / "apt-get", APT.format(folder=tmp_path)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    deb = tmp_path / "docker-registry_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(made), str(deb)], check=True, capture_output=True)
    which = loopback.shutil.which
    monkeypatch.setattr(loopback.shutil, "which", lambda name: None if name == "docker-registry" else which(name))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "asked"


def test_where_there_is_no_registry_one_is_unpacked_and_none_installed(tmp_path: Path, only_apt: Path) -> None:
    said: list[str] = []
    with loopback.registry(tmp_path / "registry", say=said.append) as host:
        assert answer(host) == 501, "the program of the package that apt-get gave"
    assert "install" not in only_apt.read_text() and "download docker-registry" in only_apt.read_text()
    (told,) = said
    assert "docker-registry" in told and "nothing is installed" in told
    assert not (tmp_path / "registry").exists()
