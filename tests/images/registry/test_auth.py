"""Logins at a registry: basic, bearer tokens, Docker's own configuration; and who must not see them."""

import base64
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from images.errors import UserError
from images.registry import client as registry_client
from images.registry.auth import Credentials, docker_credentials
from images.registry.client import Registry
from images.registry.distribution import OCI_MANIFEST, Manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support import certificate
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import Answer, Reply, Server, serving

KNOWN = Credentials(user="me", password="secret-word")
BASIC = "Basic " + base64.b64encode(b"me:secret-word").decode()
MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')
SERVED: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)


def client(
    server: Server, mount_from: Repository | None = None, known: Credentials | None = KNOWN
) -> Registry:
    repository = Repository(server.host, "staging/images")
    return Registry(
        repository, credentials=lambda _host: known, mount_from=[mount_from] if mount_from else []
    )


def guarded(
    answer: Answer, authorization: str = BASIC, challenge: str = 'Basic realm="r"'
) -> Answer:
    """Answers who has an authorization; others get the challenge."""

    def guard(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if headers.get("Authorization") != authorization:
            return 401, {"WWW-Authenticate": challenge}, b""
        return answer(method, path, headers, body)

    return guard


def with_token(server: Server, token: Answer, authorization: str = "Bearer t0ken") -> None:
    """A registry that wants a token, and gives it at /token."""
    challenge = f'Bearer realm="http://{server.host}/token",service="s",scope="x"'
    serve = guarded(lambda *_: SERVED, authorization, challenge)

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        return (token if path.startswith("/token") else serve)(method, path, headers, body)

    server.answer = answer


def test_a_request_is_sent_again_if_another_thread_answered_the_challenge_meanwhile(
    server: Server,
) -> None:
    guard = guarded(lambda *_: SERVED)
    with client(server) as registry:

        def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
            # While this request is refused, another thread's request has logged in.
            registry._login.authorization = BASIC
            return guard(method, path, headers, body)

        server.answer = answer
        assert registry.get("latest").digest == MANIFEST.digest


def test_a_registry_asks_for_a_password_once(server: Server) -> None:
    server.answer = guarded(lambda *_: SERVED)
    with client(server) as registry:
        assert registry.get("latest").digest == MANIFEST.digest
        registry.get("latest")
    assert [
        ("Authorization" in headers) for _, path, headers in server.seen if "latest" in path
    ] == [False, True, True]


def test_a_wrong_password_is_told_without_it(server: Server) -> None:
    server.answer = guarded(lambda *_: SERVED, "another")
    with client(server) as registry, pytest.raises(RegistryError, match="HTTP 401") as told:
        registry.get("latest")
    assert "docker login" in str(told.value) and "secret-word" not in str(told.value)
    assert len([path for _, path, _ in server.seen if "latest" in path]) == 2, (
        "asked again once, not for ever"
    )


def test_a_token_covers_the_repository_to_mount_from(server: Server) -> None:
    def token(_method: str, path: str, headers: dict[str, str], _body: bytes) -> Reply:
        asked = parse_qs(urlsplit(path).query)
        assert asked["scope"] == ["repository:staging/images:pull,push", "repository:other:pull"]
        assert headers["Authorization"] == BASIC
        return 200, {}, b'{"token": "t0ken"}'

    with_token(server, token)
    with client(server, Repository(server.host, "other")) as registry:
        assert registry.get("latest").digest == MANIFEST.digest


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ("repository:staging/images:delete", True),
        ("repository:other:pull repository:staging/images:pull,delete", True),
        ("repository:staging/images:pull,push", False),
        ("repository:other:delete", False),
    ],
)
def test_a_token_allows_deletion_where_the_registry_asks_for_it(
    server: Server, asked: str, granted: bool
) -> None:
    """As CNCF's distribution does, which names what a request wants in its challenge."""
    left = {"latest"}

    def answer(method: str, path: str, headers: dict[str, str], _body: bytes) -> Reply:
        if path.startswith("/token"):
            return (
                200,
                {},
                json.dumps({"token": "+".join(parse_qs(urlsplit(path).query)["scope"])}).encode(),
            )
        allowed = headers.get("Authorization", "").removeprefix("Bearer ").split("+")
        if method == "DELETE" and "repository:staging/images:delete" in allowed:
            left.clear()
            return 202, {}, b""
        if method == "DELETE" or "repository:staging/images:pull,push" not in allowed:
            scope = asked if method == "DELETE" else "repository:staging/images:pull"
            return (
                401,
                {"WWW-Authenticate": f'Bearer realm="http://{server.host}/token",scope="{scope}"'},
                b"",
            )
        return SERVED if left else (404, {}, b"")

    server.answer = answer
    with client(server) as registry:
        registry.get("latest")
        if granted:
            assert registry.delete_tag("latest") and registry.find("latest") is None
        else:
            with pytest.raises(RegistryError, match="HTTP 401"):
                registry.delete_tag("latest")


@pytest.mark.parametrize("realm", ['realm="http://example.org/token"', "realm", ""])
def test_no_password_goes_over_an_unencrypted_connection(server: Server, realm: str) -> None:
    server.answer = guarded(lambda *_: SERVED, challenge=f"Bearer {realm}")
    with client(server) as registry, pytest.raises(RegistryError, match="unencrypted connection"):
        registry.get("latest")


def test_an_identity_token_is_exchanged_for_an_access_token(server: Server) -> None:
    def token(method: str, _path: str, _headers: dict[str, str], body: bytes) -> Reply:
        form = parse_qs(body.decode())
        assert (method, form["grant_type"], form["refresh_token"]) == (
            "POST",
            ["refresh_token"],
            ["1dentity"],
        )
        return 200, {}, b'{"access_token": "t0ken"}'

    with_token(server, token)
    with client(
        server, known=Credentials(user="", password="", identity_token="1dentity")
    ) as registry:
        assert registry.get("latest").digest == MANIFEST.digest


def test_an_expired_token_is_renewed(server: Server) -> None:
    with client(server) as registry:
        for valid in ("first", "second"):
            token = json.dumps({"token": valid}).encode()
            with_token(server, lambda *_, token=token: (200, {}, token), f"Bearer {valid}")
            registry.get("latest")
    assert server.count("GET", "/token") == 2


def test_an_upload_elsewhere_gets_no_login(server: Server) -> None:
    with serving() as elsewhere:
        elsewhere.answer = guarded(lambda *_: SERVED, "another")

        def answer(method: str, *_: object) -> Reply:
            return (
                (202, {"Location": f"http://{elsewhere.host}/u"}, b"")
                if method == "POST"
                else (404, {}, b"")
            )

        server.answer = guarded(answer)
        with client(server) as registry, pytest.raises(RegistryError, match="HTTP 401"):
            registry.put_blob(b"content")
        assert [method for method, *_ in elsewhere.seen] == ["PATCH"]
        assert not any("Authorization" in headers for *_, headers in elsewhere.seen)


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """`registry.test`, which has a certificate; whose plain HTTP reaches it, too. It asks for a password."""
    trusted = certificate.write(tmp_path)
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more: resolve("127.0.0.1" if host == "registry.test" else host, *more),
    )
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "registry.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted)
    with serving(context) as found:
        found.host = found.host.replace("127.0.0.1", "registry.test")
        yield found


def test_an_upload_to_plain_http_is_refused(encrypted: Server) -> None:
    """A proxy that does not say that it speaks https (X-Forwarded-Proto)."""
    stored = BlobRegistry()

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        found = stored.answer(method, path, headers, body)
        if found and "Location" in found[1]:
            found[1]["Location"] = f"http://{encrypted.host}{found[1]['Location']}"
        return found

    encrypted.answer = guarded(answer)
    with client(encrypted) as registry, pytest.raises(RegistryError, match="unencrypted address"):
        registry.put_blob(b"content")
    assert not encrypted.unencrypted


def test_an_upload_goes_on_after_tls_that_ended_within_it(
    encrypted: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """requests calls it an SSLError, as it does a certificate that is refused."""
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)
    stored, cuts = BlobRegistry(), [1000]
    encrypted.answer = guarded(stored.answer)
    encrypted.takes = lambda method, _path: cuts.pop() if method == "PATCH" and cuts else None
    with client(encrypted) as registry:
        registry.put_blob(bytes(1 << 20))
    assert list(stored.blobs["staging/images"].values()) == [bytes(1 << 20)] and not cuts


def test_a_redirect_gets_no_login_of_netrc(
    encrypted: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Storage with a signed address refuses a second login, and has no business with it."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving() as storage:
        storage.answer = lambda *_: SERVED
        moved = {"Location": f"http://{storage.host}/signed"}
        encrypted.answer = guarded(lambda *_: (307, moved, b""))
        with client(encrypted) as registry:
            registry.get("latest")
        assert storage.seen and not any("Authorization" in headers for *_, headers in storage.seen)


def test_a_redirect_to_plain_http_gets_no_login(encrypted: Server) -> None:
    plain = {"Location": f"http://{encrypted.host}/v2/staging/images/manifests/moved"}

    def answer(_method: str, path: str, *_: object) -> Reply:
        return SERVED if path.endswith("moved") else (307, plain, b"")

    encrypted.answer = guarded(answer)
    with client(encrypted) as registry, pytest.raises(RegistryError, match="HTTP 401"):
        registry.get("latest")
    assert encrypted.unencrypted and not any(
        "Authorization" in headers for *_, headers in encrypted.unencrypted
    )


@pytest.mark.filterwarnings("ignore:docker-credential-not-there")
def test_credentials_come_from_dockers_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    pair = base64.b64encode(b"me:pass").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"ghcr.io": {"auth": pair}}}))
    found = docker_credentials("ghcr.io")
    assert found == Credentials(user="me", password="pass") and "pass" not in repr(found)
    assert docker_credentials("example.org") is None
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"ghcr.io": "not-there"}}))
    with pytest.raises(UserError, match=r"docker login ghcr\.io"):
        docker_credentials("ghcr.io")
