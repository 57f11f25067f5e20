"""A default index that asks for a login, as a company's mirror of PyPI may: locked by real uv."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from images.context import hosting
from images.errors import Problem, UserError
from images.locking import index_access, inputs, lock_file, measure_records, resolve, uv
from images.planning.image import Image
from tests.images.locking.test_private_index import plain_image
from tests.support.http_server import Reply, serving
from tests.support.private_index import PASSWORD, USER, add_public_packages
from tests.support.torch_index import DEFAULT, Indexes, indexes, known_python, uv_asks_once

__all__ = ["indexes", "known_python", "uv_asks_once"]

HOST = "pypi.corp.example"
ADDRESS = f"https://{USER}:{quote(PASSWORD, safe='')}@{HOST}/simple"


def authorization(user: str, password: str) -> str:
    """Return the header of a request with a login."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def header_for(
    url: str, private: dict[str, str] | None = None, *, only_private: bool = False
) -> str | None:
    """Return the header with a login that a request to a URL gets.

    `private`: the name of each private index -> its address. `only_private`: whether the URL is
    known to be of one of them.
    """
    login = index_access.IndexLogin(private or {}, only_private=only_private)
    request = requests.Request("GET", url, auth=login)
    return request.prepare().headers.get("Authorization")


@pytest.fixture(autouse=True)
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no index and no login on this machine."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "UV_KEYRING_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture(params=[401, 403])
def refusal(request: pytest.FixtureRequest) -> int:
    """Return the status with which the server answers a request without the login."""
    return int(request.param)


@pytest.fixture
def guarded(
    no_login: None, refusal: int, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Indexes]:
    """Yield indexes whose default one gives neither page nor file without the login."""
    monkeypatch.setattr(inputs, "TOOLS", ("installer==1.0",))
    add_public_packages(indexes)
    indexes.add(DEFAULT, "einops", "0.8.2")
    public_answer = indexes.server.answer

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if headers.get("Authorization") != authorization(USER, PASSWORD):
            return refusal, {"WWW-Authenticate": 'Basic realm="corp"'}, b""
        return public_answer(method, path, headers, body)

    indexes.server.answer = answer
    yield indexes


def with_login(indexes: Indexes, password: str = PASSWORD) -> str:
    """Return the address of the default index with a login in it."""
    return f"http://{USER}:{quote(password, safe='')}@{indexes.server.host}{DEFAULT}"


def lock_and_read_records(image: Image, folder: Path) -> None:
    """Do what `lock` does: resolve the image, and read the RECORD of each wheel."""
    lock_file.write(resolve.update([image], folder=folder).files, folder)
    locks = {image.lock_name: lock_file.read(image, folder)}
    lock_file.put(measure_records.update(locks, folder), folder)


def problem_of_lock(image: Image, folder: Path) -> Problem:
    """Return what `lock` says of an image that it can't lock."""
    with pytest.raises(UserError) as error:
        lock_and_read_records(image, folder)
    (problem,) = error.value.problems
    return problem


# --- lock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"])
def test_pages_and_files_are_asked_for_with_the_login_of_the_default_indexs_address(
    guarded: Indexes, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv(variable, with_login(guarded))
    image = plain_image()

    lock_and_read_records(image, tmp_path / "locks")

    # Then every RECORD was read, and no file of the lock has the login.
    assert measure_records.lacking(lock_file.read(image, tmp_path / "locks")) == []
    for file in (tmp_path / "locks").rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert PASSWORD.encode() not in content
        assert quote(PASSWORD, safe="").encode() not in content


def test_without_a_login_lock_says_how_to_give_one(
    guarded: Indexes, refusal: int, tmp_path: Path
) -> None:
    problem = problem_of_lock(plain_image(), tmp_path)

    host = guarded.server.host
    assert problem.cause == (
        f"the package index {host} asks for a login (HTTP {refusal}), and none is set"
    )
    assert "into the address in UV_DEFAULT_INDEX, before the host (USER:PASSWORD@" in problem.then
    assert f"(USER:PASSWORD@{guarded.server.host})" in problem.then
    assert "`nox -s lock -- cu126-torch25`" in problem.then


def test_a_login_that_the_default_index_refuses_is_named_by_its_place_and_not_shown(
    guarded: Indexes, refusal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", with_login(guarded, "wrong-7f3a9c"))

    problem = problem_of_lock(plain_image(), tmp_path)

    assert f"refuses the login of UV_DEFAULT_INDEX (HTTP {refusal})" in problem.cause
    assert "wrong-7f3a9c" not in str(problem)


def test_a_wheel_that_asks_for_a_login_names_the_server_that_has_it(refusal: int) -> None:
    with serving() as server, pytest.raises(UserError) as error:
        server.answer = lambda *_: (refusal, {}, b"")
        measure_records._measure(f"http://{server.host}/a/small.whl", requests.Session(), {})

    (problem,) = error.value.problems
    assert problem.where == "small.whl"
    assert f"127.0.0.1, asks for a login, or refuses the one of ~/.netrc (HTTP {refusal})" in (
        problem.cause
    )
    assert "~/.netrc, or write one; then `nox -s lock`" in problem.then


# --- which request gets the login -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "is_same"),
    [
        (f"https://{HOST}/packages/x.whl", True),
        (f"https://{HOST}:443/simple/x/", True),
        (f"http://{HOST}/simple/x/", False),
        (f"https://{HOST}:8443/simple/x/", False),
        ("https://files.corp.example/x.whl", False),
        (f"https://{HOST}.evil.example/x.whl", False),
    ],
)
def test_the_login_of_the_default_index_goes_to_its_own_server_only(
    monkeypatch: pytest.MonkeyPatch, url: str, is_same: bool
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", ADDRESS)

    assert header_for(url) == (authorization(USER, PASSWORD) if is_same else None)


def test_a_private_index_on_the_server_of_the_default_one_keeps_its_own_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given two indexes of one server, as Artifactory has them.
    monkeypatch.setenv("PIP_INDEX_URL", ADDRESS.replace("/simple", "/api/pypi/mirror/simple"))
    monkeypatch.setenv("UV_INDEX_ACME_USERNAME", "acme")
    monkeypatch.setenv("UV_INDEX_ACME_PASSWORD", "other")
    private = {"acme": f"https://{HOST}/api/pypi/acme/simple"}

    of_default = header_for(f"https://{HOST}/api/pypi/mirror/packages/x.whl", private)
    of_private = header_for(f"https://{HOST}/api/pypi/acme/packages/x.whl", private)

    assert of_default == authorization(USER, PASSWORD)
    assert of_private == authorization("acme", "other")


@pytest.fixture
def team_login(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a login for the private index `team`, and return the header with it."""
    monkeypatch.setenv("UV_INDEX_TEAM_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_TEAM_PASSWORD", "of-the-team")
    return authorization("me", "of-the-team")


@pytest.mark.parametrize(
    ("private_path", "asked_path"),
    [
        # The name of the one path begins with that of the other.
        ("/pypi-team", "/pypi/torch/torch.whl"),
        ("/pypi-team", "/pypi-t/torch.whl"),
        # The file lies beside both indexes.
        ("/pypi-team", "/files/torch.whl"),
        ("/team/simple", "/files/torch.whl"),
    ],
)
def test_the_login_of_a_private_index_is_not_sent_for_packages_of_the_default_one(
    private_path: str, asked_path: str, team_login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given both indexes on one server, each with a login.
    monkeypatch.setenv("UV_DEFAULT_INDEX", ADDRESS.replace("/simple", "/pypi"))
    private = {"team": f"https://{HOST}{private_path}"}

    assert header_for(f"https://{HOST}{asked_path}", private) == authorization(USER, PASSWORD)
    assert header_for(f"https://{HOST}{private_path}/x.whl", private) == team_login


def test_the_login_of_a_private_index_is_not_sent_to_a_default_one_without_login(
    team_login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"https://{HOST}/pypi")
    private = {"team": f"https://{HOST}/team"}

    assert header_for(f"https://{HOST}/pypi/x.whl", private) is None
    # A file beside both can be of either, and only the private index has a login.
    assert header_for(f"https://{HOST}/files/x.whl", private) == team_login


def test_a_file_that_is_known_to_be_private_gets_the_private_login_wherever_it_lies(
    team_login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", ADDRESS.replace("/simple", "/pypi"))
    private = {"team": f"https://{HOST}/team"}

    assert header_for(f"https://{HOST}/files/x.whl", private, only_private=True) == team_login


@pytest.mark.parametrize(
    ("asked_path", "place"),
    [("/pypi/x.whl", "UV_DEFAULT_INDEX"), ("/pypi-team/x.whl", "UV_INDEX_TEAM_PASSWORD")],
)
def test_a_refusal_names_the_login_that_was_sent(
    asked_path: str, place: str, team_login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        # Given a server with two indexes, which refuses every login.
        server.answer = lambda *_: (401, {}, b"")
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:of-default@{server.host}/pypi")
        private = {"team": f"http://{server.host}/pypi-team"}
        session = requests.Session()
        session.auth = index_access.IndexLogin(private)

        with pytest.raises(UserError) as error:
            measure_records._measure(f"http://{server.host}{asked_path}", session, private)

    (problem,) = error.value.problems
    assert f"refuses the login of {place} (HTTP 401)" in problem.cause
    assert f"correct user and password in {place}" in problem.then
    assert "of-default" not in str(problem)


def test_a_refusal_of_a_private_index_without_a_login_names_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", ADDRESS.replace("/simple", "/pypi"))
    private = {"team": f"https://{HOST}/pypi-team"}

    cause, then = index_access.describe_refusal(f"https://{HOST}/pypi-team/x.whl", 401, private)

    assert cause == "asks for a login (HTTP 401), and none is set"
    assert "set UV_INDEX_TEAM_USERNAME and UV_INDEX_TEAM_PASSWORD" in then
    assert "UV_DEFAULT_INDEX" not in then


def test_the_name_of_a_default_index_does_not_make_a_private_login_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uv would take the login from the variables that have the name."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"team=https://{HOST}/simple")
    monkeypatch.setenv("UV_INDEX_TEAM_USERNAME", USER)
    monkeypatch.setenv("UV_INDEX_TEAM_PASSWORD", PASSWORD)

    assert header_for(f"https://{HOST}/x.whl") is None
    assert uv.environment(os.environ)["UV_DEFAULT_INDEX"] == f"https://{HOST}/simple"
    assert hosting.settings_of(os.environ).index["UV_DEFAULT_INDEX"] == f"https://{HOST}/simple"


def test_a_token_in_place_of_user_and_password_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"https://token@{HOST}/simple")

    assert header_for(f"https://{HOST}/x.whl") == authorization("token", "")


def test_the_address_comes_before_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text(f"machine {HOST} login other password of-netrc\n")
    (tmp_path / "netrc").chmod(0o600)

    monkeypatch.setenv("PIP_INDEX_URL", f"https://{HOST}/simple")
    assert header_for(f"https://{HOST}/x.whl") == authorization("other", "of-netrc")

    monkeypatch.setenv("PIP_INDEX_URL", ADDRESS)
    assert header_for(f"https://{HOST}/x.whl") == authorization(USER, PASSWORD)
