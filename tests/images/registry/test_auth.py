"""Logins at a registry: basic, bearer tokens, Docker's configuration; and who must not get them."""

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

CREDENTIALS = Credentials(user="me", password="secret-word")
BASIC = "Basic " + base64.b64encode(b"me:secret-word").decode()
MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')
MANIFEST_REPLY: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)
Headers = dict[str, str]


def open_registry(
    server: Server,
    mount_from: Repository | None = None,
    credentials: Credentials | None = CREDENTIALS,
) -> Registry:
    """A client of the repository `staging/images` on a server."""
    return Registry(
        Repository(server.host, "staging/images"),
        credentials=lambda _host: credentials,
        mount_from=[mount_from] if mount_from else [],
    )


def give_manifest(*_: object) -> Reply:
    return MANIFEST_REPLY


def guarded(
    answer: Answer, authorization: str = BASIC, challenge: str = 'Basic realm="r"'
) -> Answer:
    """Let a request with this authorization through to `answer`; others get the challenge."""

    def answer_or_challenge(method: str, path: str, headers: Headers, body: bytes) -> Reply | None:
        if headers.get("Authorization") != authorization:
            return 401, {"WWW-Authenticate": challenge}, b""
        return answer(method, path, headers, body)

    return answer_or_challenge


def serve_manifest_for_token(
    server: Server, give_token: Answer, authorization: str = "Bearer t0ken"
) -> None:
    """Let a server ask for a token, which `give_token` gives, and then give a manifest."""
    challenge = f'Bearer realm="http://{server.host}/token",service="s",scope="x"'
    guarded_manifest = guarded(give_manifest, authorization, challenge)

    def answer(method: str, path: str, headers: Headers, body: bytes) -> Reply | None:
        if path.startswith("/token"):
            return give_token(method, path, headers, body)
        return guarded_manifest(method, path, headers, body)

    server.answer = answer


def sent_a_login(requests: list[tuple[str, str, Headers]]) -> bool:
    """Whether one of these requests had a login."""
    return any("Authorization" in headers for _method, _path, headers in requests)


# --- passwords ------------------------------------------------------------------------------------


def test_a_login_is_sent_with_every_request_after_the_first_challenge(server: Server) -> None:
    server.answer = guarded(give_manifest)

    with open_registry(server) as registry:
        assert registry.get("latest").digest == MANIFEST.digest
        registry.get("latest")

    had_login = []
    for _method, path, headers in server.seen:
        if "latest" in path:
            had_login.append("Authorization" in headers)
    assert had_login == [False, True, True]


def test_a_wrong_password_is_refused_after_one_more_attempt_and_not_shown(
    server: Server,
) -> None:
    server.answer = guarded(give_manifest, authorization="another")

    with open_registry(server) as registry, pytest.raises(RegistryError, match="HTTP 401") as error:
        registry.get("latest")

    assert "docker login" in str(error.value)
    assert "secret-word" not in str(error.value)
    assert server.count("GET", "latest") == 2


def test_a_request_is_sent_again_if_another_thread_answered_the_challenge_meanwhile(
    server: Server,
) -> None:
    challenge_or_manifest = guarded(give_manifest)

    with open_registry(server) as registry:

        def answer(method: str, path: str, headers: Headers, body: bytes) -> Reply | None:
            # While this request is refused, another thread's request has logged in.
            registry._login.authorization = BASIC
            return challenge_or_manifest(method, path, headers, body)

        server.answer = answer

        assert registry.get("latest").digest == MANIFEST.digest


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_covers_the_repository_to_mount_from(server: Server) -> None:
    def give_token(_method: str, path: str, headers: Headers, _body: bytes) -> Reply:
        query = parse_qs(urlsplit(path).query)
        assert query["scope"] == ["repository:staging/images:pull,push", "repository:other:pull"]
        assert headers["Authorization"] == BASIC
        return 200, {}, b'{"token": "t0ken"}'

    serve_manifest_for_token(server, give_token)

    with open_registry(server, mount_from=Repository(server.host, "other")) as registry:
        assert registry.get("latest").digest == MANIFEST.digest


def test_an_identity_token_is_exchanged_for_an_access_token(server: Server) -> None:
    def give_token(method: str, _path: str, _headers: Headers, body: bytes) -> Reply:
        form = parse_qs(body.decode())
        assert method == "POST"
        assert form["grant_type"] == ["refresh_token"]
        assert form["refresh_token"] == ["1dentity"]
        return 200, {}, b'{"access_token": "t0ken"}'

    serve_manifest_for_token(server, give_token)
    credentials = Credentials(user="", password="", identity_token="1dentity")

    with open_registry(server, credentials=credentials) as registry:
        assert registry.get("latest").digest == MANIFEST.digest


def test_an_expired_token_is_renewed(server: Server) -> None:
    with open_registry(server) as registry:
        for valid_token in ("first", "second"):
            token_reply = json.dumps({"token": valid_token}).encode()

            def give_token(*_: object, token_reply: bytes = token_reply) -> Reply:
                return 200, {}, token_reply

            serve_manifest_for_token(server, give_token, f"Bearer {valid_token}")
            registry.get("latest")

    assert server.count("GET", "/token") == 2


def serve_as_distribution(server: Server, scope_of_delete: str) -> None:
    """Play the distribution project's registry: a challenge names what the request needs.

    `scope_of_delete`: what the challenge to a DELETE names. A token is the list of its scopes. The
    tag `latest` exists until it is deleted.
    """
    own = "repository:staging/images"
    tags = {"latest"}

    def answer(method: str, path: str, headers: Headers, _body: bytes) -> Reply:
        if path.startswith("/token"):
            scopes = parse_qs(urlsplit(path).query)["scope"]
            return 200, {}, json.dumps({"token": "+".join(scopes)}).encode()

        granted = headers.get("Authorization", "").removeprefix("Bearer ").split("+")
        is_delete = method == "DELETE"
        needed = f"{own}:delete" if is_delete else f"{own}:pull,push"
        if needed not in granted:
            named = scope_of_delete if is_delete else f"{own}:pull"
            challenge = f'Bearer realm="http://{server.host}/token",scope="{named}"'
            return 401, {"WWW-Authenticate": challenge}, b""
        if is_delete:
            tags.clear()
            return 202, {}, b""
        return MANIFEST_REPLY if tags else (404, {}, b"")

    server.answer = answer


@pytest.mark.parametrize(
    "scope",
    [
        "repository:staging/images:delete",
        "repository:other:pull repository:staging/images:pull,delete",
    ],
)
def test_a_token_allows_deletion_where_the_registry_asks_for_it(server: Server, scope: str) -> None:
    serve_as_distribution(server, scope_of_delete=scope)

    with open_registry(server) as registry:
        registry.get("latest")

        assert registry.delete_tag("latest")
        assert registry.find("latest") is None


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param("repository:staging/images:pull,push", id="asks for no deletion"),
        pytest.param("repository:other:delete", id="asks for it in another repository"),
    ],
)
def test_a_token_allows_no_deletion_elsewhere(server: Server, scope: str) -> None:
    serve_as_distribution(server, scope_of_delete=scope)

    with open_registry(server) as registry:
        registry.get("latest")

        with pytest.raises(RegistryError, match="HTTP 401"):
            registry.delete_tag("latest")


@pytest.mark.parametrize(
    "realm",
    [
        pytest.param('realm="http://example.org/token"', id="http"),
        pytest.param("realm", id="no value"),
        pytest.param("", id="none"),
    ],
)
def test_no_password_goes_over_an_unencrypted_connection(server: Server, realm: str) -> None:
    server.answer = guarded(give_manifest, challenge=f"Bearer {realm}")

    with (
        open_registry(server) as registry,
        pytest.raises(RegistryError, match="unencrypted connection"),
    ):
        registry.get("latest")


# --- other hosts ----------------------------------------------------------------------------------


def test_an_upload_to_another_host_gets_no_login(server: Server) -> None:
    with serving() as storage:
        storage.answer = guarded(give_manifest, authorization="another")

        def answer(method: str, *_: object) -> Reply:
            if method == "POST":
                return 202, {"Location": f"http://{storage.host}/u"}, b""
            return 404, {}, b""

        server.answer = guarded(answer)

        with open_registry(server) as registry, pytest.raises(RegistryError, match="HTTP 401"):
            registry.put_blob(b"content")

        assert [method for method, _path, _headers in storage.seen] == ["PATCH"]
        assert not sent_a_login(storage.seen)


@pytest.fixture
def https_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server called `registry.test`, with a certificate. It also answers plain HTTP."""
    certificate_file = certificate.write(tmp_path)
    resolve = socket.getaddrinfo

    def resolve_here(host: str, *arguments: object) -> object:
        return resolve("127.0.0.1" if host == "registry.test" else host, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate_file))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "registry.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    with serving(context) as server:
        server.host = server.host.replace("127.0.0.1", "registry.test")
        yield server


def test_an_upload_to_plain_http_is_refused(https_server: Server) -> None:
    """A proxy that does not say that it speaks https (X-Forwarded-Proto)."""
    blobs = BlobRegistry()

    def answer(method: str, path: str, headers: Headers, body: bytes) -> Reply | None:
        reply = blobs.answer(method, path, headers, body)
        if reply and "Location" in reply[1]:
            reply[1]["Location"] = f"http://{https_server.host}{reply[1]['Location']}"
        return reply

    https_server.answer = guarded(answer)

    with (
        open_registry(https_server) as registry,
        pytest.raises(RegistryError, match="unencrypted address"),
    ):
        registry.put_blob(b"content")

    assert not https_server.unencrypted


def test_an_upload_is_sent_again_after_tls_that_ended_within_it(
    https_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """requests calls it an SSLError, as it does a certificate that is refused."""
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)
    blobs = BlobRegistry()
    https_server.answer = guarded(blobs.answer)
    breaks = [1000]

    def take(method: str, _path: str) -> int | None:
        """Return after how many bytes the connection breaks; None: it does not."""
        return breaks.pop() if method == "PATCH" and breaks else None

    https_server.takes = take
    content = bytes(1 << 20)

    with open_registry(https_server) as registry:
        registry.put_blob(content)

    assert list(blobs.blobs["staging/images"].values()) == [content]
    assert not breaks


def test_a_redirect_gets_no_login_of_netrc(
    https_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Storage with a signed address refuses a second login, and must not learn it."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving() as storage:
        storage.answer = give_manifest
        redirect = {"Location": f"http://{storage.host}/signed"}
        https_server.answer = guarded(lambda *_: (307, redirect, b""))

        with open_registry(https_server) as registry:
            registry.get("latest")

        assert storage.seen
        assert not sent_a_login(storage.seen)


def test_a_redirect_to_plain_http_gets_no_login(https_server: Server) -> None:
    to_plain_http = {"Location": f"http://{https_server.host}/v2/staging/images/manifests/moved"}

    def answer(_method: str, path: str, *_: object) -> Reply:
        return MANIFEST_REPLY if path.endswith("moved") else (307, to_plain_http, b"")

    https_server.answer = guarded(answer)

    with open_registry(https_server) as registry, pytest.raises(RegistryError, match="HTTP 401"):
        registry.get("latest")

    assert https_server.unencrypted
    assert not sent_a_login(https_server.unencrypted)


# --- Docker's configuration -----------------------------------------------------------------------


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of Docker, which does not exist yet."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def test_credentials_come_from_dockers_own_configuration(docker_config: Path) -> None:
    login = base64.b64encode(b"me:pass").decode()
    docker_config.write_text(json.dumps({"auths": {"ghcr.io": {"auth": login}}}))

    credentials = docker_credentials("ghcr.io")

    assert credentials == Credentials(user="me", password="pass")
    assert "pass" not in repr(credentials)
    assert docker_credentials("example.org") is None


@pytest.mark.filterwarnings("ignore:docker-credential-not-there")
def test_a_credential_helper_that_is_not_installed_is_an_error(docker_config: Path) -> None:
    docker_config.write_text(json.dumps({"credHelpers": {"ghcr.io": "not-there"}}))

    with pytest.raises(UserError, match=r"docker login ghcr\.io"):
        docker_credentials("ghcr.io")
