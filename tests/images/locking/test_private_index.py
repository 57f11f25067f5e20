"""Packages of a private index, locked by the real uv from indexes on loopback.

The default index has packages of the same names: they must never be taken.
"""

import hashlib
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from images.errors import UserError
from images.locking import index_access, inputs, lock_file, measure_records, resolve
from images.locking.lock_file import Status
from images.planning.image import Image, Pin, PrivateIndex
from tests.support.http_server import Reply
from tests.support.private_index import (
    FOLDER,
    NAME,
    PASSWORD,
    PASSWORD_VARIABLE,
    USER,
    USER_VARIABLE,
    add_public_packages,
    private_index,
    with_private_pins,
)
from tests.support.sources import image
from tests.support.torch_index import (
    DEFAULT,
    Indexes,
    indexes,
    known_python,
    make_wheel,
    uv_asks_once,
)

__all__ = ["indexes", "known_python", "uv_asks_once"]

PINS = (
    Pin(name="torch", version="2.5.1", layer="torch"),
    Pin(name="einops", version="0.8.2", layer="libraries"),
)
ACME = {"acme": "0.3.0", "acme-train": "1.4.0"}


@pytest.fixture
def index(indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> PrivateIndex:
    """Yield a private index with two packages, whose names the default index has, too."""
    monkeypatch.setattr(inputs, "TOOLS", ("installer==1.0",))
    monkeypatch.setenv(USER_VARIABLE, USER)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    add_public_packages(indexes)
    for name, version, *requirements in (
        ("einops", "0.8.2"),
        # The same version with other contents, and a newer one.
        ("acme", "0.3.0", "einops"),
        ("acme", "5.9.0"),
        ("acme-train", "1.4.0", "einops"),
        ("acme-train", "2.0"),
    ):
        indexes.add(DEFAULT, name, version, *requirements)
    indexes.add(FOLDER, "acme", "0.3.0")
    indexes.add(FOLDER, "acme-train", "1.4.0", "acme>=0.1", "einops")
    return private_index(indexes)


def plain_image() -> Image:
    """Return an image that pins no private package."""
    toolkit = (Pin(name="nvidia-cuda-nvcc-cu12", version="12.6.85", layer="toolkit"),)
    return replace(image("cu126-torch25"), pins=PINS, index=None, toolkit=toolkit, prebuilt=())


def hash_on(folder: str, indexes: Indexes, name: str, version: str) -> str:
    """Return the sha256 in the link to a wheel."""
    link = indexes.links[f"{folder}/{name}/"][
        f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    ]
    return link.partition("#sha256=")[2].partition('"')[0]


def write_lock(image: Image, folder: Path) -> None:
    lock_file.write(resolve.update([image], folder=folder).files, folder)


# --- where packages come from ---------------------------------------------------------------------


@pytest.mark.parametrize("layer_of_acme", ["libraries", "light"])
def test_a_private_package_is_taken_from_its_index_and_the_default_one_is_not_asked_for_it(
    indexes: Indexes, index: PrivateIndex, layer_of_acme: str
) -> None:
    """Also where a package of a lower layer requires it."""
    private = with_private_pins(plain_image(), index, {"acme-train": "1.4.0"})
    private = with_private_pins(private, index, {"acme": "0.3.0"}, layer_of_acme)

    lock = resolve.resolve(private)

    hashes = {package.name: package.hashes for package in lock.packages()}
    for name, version in ACME.items():
        assert hashes[name] == (hash_on(FOLDER, indexes, name, version),)
        assert indexes.asked(f"{DEFAULT}/{name}/") == []
    assert lock.versions([layer_of_acme])["acme"] == "0.3.0"


def test_a_private_package_that_is_required_and_not_pinned_is_refused(
    index: PrivateIndex,
) -> None:
    """The default index has one of the same name: uv would take it."""
    private = with_private_pins(plain_image(), index, {"acme-train": "1.4.0"})

    with pytest.raises(UserError) as error:
        resolve.resolve(replace(private, reserved=("acme",)))

    (problem,) = error.value.problems
    assert "requires acme" in problem.cause
    assert "pin acme in matrix.yaml" in problem.then


def test_a_required_private_package_that_the_default_index_lacks_is_to_be_pinned(
    indexes: Indexes, index: PrivateIndex
) -> None:
    del indexes.links[f"{DEFAULT}/acme/"]
    private = with_private_pins(plain_image(), index, {"acme-train": "1.4.0"})

    with pytest.raises(UserError) as error:
        resolve.resolve(replace(private, reserved=("acme",)))

    assert "pin acme in matrix.yaml" in error.value.problems[0].then


def test_the_lock_names_the_wheel_that_an_installer_would_prefer(
    indexes: Indexes, index: PrivateIndex
) -> None:
    for tags in (
        "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
    ):
        file = f"acme-0.3.0-{tags}.whl"
        wheel = make_wheel("acme", "0.3.0", library=tags.encode())
        digest = hashlib.sha256(wheel).hexdigest()
        indexes.files[f"{FOLDER}/{file}"] = wheel
        indexes.links[f"{FOLDER}/acme/"][file] = (
            f'<a href="{FOLDER}/{file}#sha256={digest}">{file}</a>'
        )

    lock = resolve.resolve(with_private_pins(plain_image(), index, {"acme": "0.3.0"}))

    wheels = [package.wheel for package in lock.packages() if package.wheel]
    assert wheels == ["acme-0.3.0-cp311-cp311-manylinux_2_28_x86_64.whl"]


@pytest.mark.parametrize("has_other_wheel", [True, False])
def test_a_wheel_with_an_odd_name_is_taken_for_no_wheel(
    indexes: Indexes, index: PrivateIndex, has_other_wheel: bool
) -> None:
    """uv gives it. The standard allows no `__` in the name of a package."""
    odd = "acme__train-1.4.0-py3-none-any.whl"
    links = indexes.links[f"{FOLDER}/acme-train/"]
    (usual,) = links
    for suffix in ("", ".metadata"):
        indexes.files[f"{FOLDER}/{odd}{suffix}"] = indexes.files[f"{FOLDER}/{usual}{suffix}"]
    links[odd] = links[usual].replace(usual, odd)
    private = with_private_pins(plain_image(), index, ACME)
    if has_other_wheel:
        wheels = [package.wheel for package in resolve.resolve(private).packages()]
        assert usual in wheels
        return

    del links[usual]
    with pytest.raises(UserError) as error:
        resolve.resolve(private)

    (problem,) = error.value.problems
    assert f"gives {odd!r}, which is no wheel's name" in problem.cause


def test_a_build_with_a_local_version_is_refused_with_what_to_do(
    indexes: Indexes, index: PrivateIndex
) -> None:
    indexes.add(FOLDER, "acme", "0.4.0+corp1")

    with pytest.raises(UserError) as error:
        resolve.resolve(with_private_pins(plain_image(), index, {"acme": "0.4.0"}))

    assert "publish it without +corp1 on its private index" in error.value.problems[0].then


# --- the lock -------------------------------------------------------------------------------------


def test_a_lock_says_where_private_packages_come_from_and_has_no_login(
    indexes: Indexes, index: PrivateIndex, tmp_path: Path
) -> None:
    private = with_private_pins(plain_image(), index, ACME)

    write_lock(private, tmp_path)

    lock = lock_file.read(private, tmp_path)
    assert lock.inputs.private == dict.fromkeys(ACME, NAME)
    assert lock.inputs.indexes == {NAME: index.url}
    wheels = {package.name: package.wheel for package in lock.packages() if package.wheel}
    assert wheels["acme-train"] == "acme_train-1.4.0-py3-none-any.whl"
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or PASSWORD.encode() not in file.read_bytes()


def test_records_of_private_wheels_are_read_with_the_login(
    index: PrivateIndex, tmp_path: Path
) -> None:
    private = with_private_pins(plain_image(), index, ACME)
    write_lock(private, tmp_path)

    locks = {private.lock_name: lock_file.read(private, tmp_path)}
    lock_file.put(measure_records.update(locks, tmp_path), tmp_path)

    assert measure_records.lacking(lock_file.read(private, tmp_path)) == []


def test_a_package_that_moves_to_a_private_index_makes_the_lock_stale(
    index: PrivateIndex, tmp_path: Path
) -> None:
    public = replace(plain_image(), pins=(*PINS, Pin(name="acme", version="0.3.0", layer="light")))
    write_lock(public, tmp_path)
    private = with_private_pins(plain_image(), index, {"acme": "0.3.0"}, "light")

    state = lock_file.state(private, tmp_path)

    assert state.status is Status.STALE
    assert "acme acme-corp added to the private packages" in state.differences


def test_a_locked_package_that_a_private_index_claims_later_makes_the_lock_stale(
    index: PrivateIndex, tmp_path: Path
) -> None:
    public = replace(
        plain_image(), pins=(*PINS, Pin(name="acme-train", version="1.4.0", layer="light"))
    )
    write_lock(public, tmp_path)

    state = lock_file.state(replace(public, reserved=("einops", "acme")), tmp_path)

    assert state.differences == ("einops is from the default index",)


# --- what an index answers ------------------------------------------------------------------------


def problem_of(index: PrivateIndex, *packages: str) -> str:
    """Return the problem that the index gives with these packages, as it is printed."""
    pins = [Pin(name=name, version="1", layer="light", index=index) for name in packages]
    with pytest.raises(UserError) as error:
        index_access.require_packages(pins, "truetag lock")
    (problem,) = error.value.problems
    assert error.value.code == 1
    assert problem.where == f"index {NAME} ({index.url})"
    assert problem.then.endswith("then `truetag lock`")
    return str(problem)


def test_an_index_that_asks_for_a_login_is_told_how_to_get_it(
    index: PrivateIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE)

    problem = problem_of(index, *ACME)

    assert "asks for a login for acme (HTTP 401), and none is set" in problem
    assert f"set {USER_VARIABLE} and {PASSWORD_VARIABLE}, or write a line for 127.0.0.1" in problem


def test_a_wrong_password_is_reported_by_its_place_and_not_shown(
    index: PrivateIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "wr0ng&secret")

    problem = problem_of(index, *ACME)

    assert f"refuses the login of {PASSWORD_VARIABLE}" in problem
    assert "wr0ng" not in problem


def test_a_package_that_the_index_lacks_is_named(index: PrivateIndex) -> None:
    assert "does not have acme-other" in problem_of(index, "acme", "acme-other")


def test_an_index_that_does_not_answer_is_named(index: PrivateIndex) -> None:
    closed = replace(index, url="http://127.0.0.1:9/simple")

    assert "can't be reached: Connection refused" in problem_of(closed, "acme")


def send_on(indexes: Indexes, answer: tuple[int, dict[str, str], bytes]) -> str:
    """Let the private index send requests for `acme` on, and return the server's name there.

    That server gives this answer.
    """
    own_answer = indexes.server.answer
    elsewhere = f"http://localhost:{indexes.server.host.rpartition(':')[2]}/elsewhere"

    def answer_or_send_on(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path == "/elsewhere":
            return answer
        if path == f"{FOLDER}/acme/":
            return 303, {"Location": elsewhere}, b""
        reply = own_answer(method, path, headers, body)
        assert reply
        return reply

    indexes.server.answer = answer_or_send_on
    return "localhost"


def test_an_index_that_sends_requests_on_to_another_server_is_refused(
    indexes: Indexes, index: PrivateIndex
) -> None:
    """pypiserver does so with packages that it does not have: uv would take PyPI's."""
    host = send_on(indexes, (200, {}, b"the page of a package"))

    assert f"sends requests for acme on to {host}" in problem_of(index, "acme")


def test_a_refusal_of_another_server_is_not_told_as_that_of_the_index(
    indexes: Indexes, index: PrivateIndex
) -> None:
    host = send_on(indexes, (401, {}, b""))

    problem = problem_of(index, "acme")

    assert f"sends requests for acme on to {host}, which asks for a login" in problem
    assert f"next: write a line for {host} into ~/.netrc, with its login; then" in problem
    assert PASSWORD_VARIABLE not in problem


def test_what_another_server_lacks_is_not_told_as_missing_on_the_index(
    indexes: Indexes, index: PrivateIndex
) -> None:
    host = send_on(indexes, (404, {}, b""))

    assert f"sends requests for acme on to {host}, which does not have acme" in problem_of(
        index, "acme"
    )


# --- logins ---------------------------------------------------------------------------------------


INDEX = PrivateIndex(name=NAME, url="https://pypi.acme.test/simple")
SERVICES = (INDEX.url, "pypi.acme.test")


@pytest.fixture
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no login for the index on this machine, and ask keyrings anew."""
    index_access.ask_keyring.cache_clear()
    for name in (USER_VARIABLE, PASSWORD_VARIABLE, "UV_KEYRING_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def write_netrc(folder: Path, text: str) -> None:
    (folder / "netrc").write_text(text)
    (folder / "netrc").chmod(0o600)


def add_keyring(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `keyring` before all others."""
    program = folder / "keyring"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("UV_KEYRING_PROVIDER", "subprocess")


def test_without_a_login_there_is_none(no_login: None) -> None:
    assert index_access.find_login(INDEX) is None


def test_variables_come_before_netrc(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_netrc(tmp_path, "machine pypi.acme.test login me password of-netrc\n")
    assert index_access.find_login(INDEX) == ("me", "of-netrc", "netrc")

    monkeypatch.setenv(USER_VARIABLE, "ci")
    monkeypatch.setenv(PASSWORD_VARIABLE, "of-variable")
    assert index_access.find_login(INDEX) == ("ci", "of-variable", PASSWORD_VARIABLE)


@pytest.mark.parametrize("service", SERVICES)
def test_a_keyring_is_asked_for_the_address_and_then_for_the_host(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    script = f'[ "$*" = "--mode creds get {service}" ] && printf "me\\nof-keyring\\n"'
    add_keyring(tmp_path, script, monkeypatch)

    assert index_access.find_login(INDEX) == ("me", "of-keyring", "keyring")


def test_a_keyring_is_asked_for_the_password_of_a_user_that_is_known(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'[ "$*" = "get {INDEX.url} ci" ] && echo of-keyring'
    add_keyring(tmp_path, script, monkeypatch)
    monkeypatch.setenv(USER_VARIABLE, "ci")

    assert index_access.find_login(INDEX) == ("ci", "of-keyring", "keyring")


def test_a_keyring_is_asked_once_for_all_requests(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where wheels are fetched in several threads."""
    questions = tmp_path / "questions"
    add_keyring(tmp_path, f'echo "$*" >>{questions}; printf "me\\nof-keyring\\n"', monkeypatch)

    def authorization(_: int) -> str | None:
        login = index_access.IndexLogin({INDEX.name: INDEX.url})
        return (
            requests.Request("GET", f"{INDEX.url}/acme/", auth=login)
            .prepare()
            .headers.get("Authorization")
        )

    with ThreadPoolExecutor(8) as pool:
        headers = set(pool.map(authorization, range(8)))

    assert len(headers) == 1 and None not in headers
    assert questions.read_text().splitlines() == [f"--mode creds get {INDEX.url}"]


def test_a_keyring_that_waits_for_somebody_is_named_with_the_next_step(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_keyring(tmp_path, "exec sleep 600", monkeypatch)
    monkeypatch.setattr(index_access, "_PATIENCE_WITH_KEYRING", 0.1)

    with pytest.raises(UserError) as error:
        index_access.find_login(INDEX)

    (problem,) = error.value.problems
    assert "did not answer within 0.1 seconds" in problem.cause
    assert f"`keyring --mode creds get {INDEX.url}` answers by itself" in problem.then
    assert f"set {USER_VARIABLE} and {PASSWORD_VARIABLE}" in problem.then


def test_a_keyring_that_is_not_installed_has_no_login(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("UV_KEYRING_PROVIDER", "subprocess")

    assert index_access.find_login(INDEX) is None


@pytest.mark.parametrize(
    ("url", "is_same"),
    [
        ("https://pypi.corp.example:443/simple/x/", True),
        ("http://pypi.corp.example/simple/", False),
        ("https://pypi.corp.example:8443/simple/", False),
        ("https://files.corp.example/simple/", False),
    ],
)
def test_a_login_goes_to_the_server_of_its_index_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, is_same: bool
) -> None:
    monkeypatch.setenv(USER_VARIABLE, USER)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    login = index_access.IndexLogin({"acme-corp": "https://Pypi.Corp.example/simple"})

    request = requests.Request("GET", url, auth=login).prepare()

    assert ("Authorization" in request.headers) == is_same
