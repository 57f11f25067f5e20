"""The registry client against a server of the test's own: logins, tokens, retries, mounts, referrers, wrong content."""

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from images.errors import UserError
from images.host.hashing import oci_digest
from images.registry.client import (
    OCI_INDEX,
    OCI_MANIFEST,
    Credentials,
    Descriptor,
    File,
    Manifest,
    Reference,
    Registry,
    RegistryError,
    Repository,
    artifact,
    docker_credentials,
    fallback_tag,
    index,
    is_loopback,
    referrer,
)

KNOWN = Credentials(user="me", password="secret-word")
Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Server:
    """Answers what `answer` says; writes down what was asked."""

    host: str = ""
    answer: Callable[[str, str, dict[str, str], bytes], Reply] = lambda *_: (404, {}, b"")
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = dict(self.headers.items())
            found.seen.append((self.command, self.path, headers))
            status, more, content = found.answer(self.command, self.path, headers, body)
            self.send_response(status)
            for key, value in more.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.host = f"127.0.0.1:{listening.server_address[1]}"
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    yield found
    listening.shutdown()
    listening.server_close()


def client(server: Server, known: Credentials | None = KNOWN, **more: object) -> Registry:
    repository = Repository(server.host, "staging/images")
    return Registry(repository, credentials=lambda _host: known, sleep=lambda _: None, **more)  # type: ignore[arg-type]


MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')
SERVED: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)


def test_a_registry_asks_for_a_password_once(server: Server) -> None:
    expected = "Basic " + base64.b64encode(b"me:secret-word").decode()

    def answer(_method: str, _path: str, headers: dict[str, str], _body: bytes) -> Reply:
        if headers.get("Authorization") != expected:
            return 401, {"WWW-Authenticate": 'Basic realm="r"'}, b""
        return SERVED

    server.answer = answer
    with client(server) as registry:
        assert registry.get("latest").digest == MANIFEST.digest
        registry.get("latest")
    assert [("Authorization" in headers) for _, path, headers in server.seen if "latest" in path] == [False, True, True]


def test_a_wrong_password_is_told_without_it(server: Server) -> None:
    server.answer = lambda *_: (401, {"WWW-Authenticate": 'Basic realm="r"'}, b"")
    with client(server) as registry, pytest.raises(RegistryError, match="HTTP 401") as told:
        registry.get("latest")
    assert "docker login" in str(told.value) and "secret-word" not in str(told.value)
    assert len([path for _, path, _ in server.seen if "latest" in path]) == 2, "asked again once, not for ever"


def test_a_token_covers_the_repository_to_mount_from(server: Server) -> None:
    def answer(_method: str, path: str, headers: dict[str, str], _body: bytes) -> Reply:
        if path.startswith("/token"):
            asked = parse_qs(urlsplit(path).query)
            assert asked["scope"] == ["repository:staging/images:pull,push", "repository:other:pull"]
            assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret-word").decode()
            return 200, {}, b'{"token": "t0ken"}'
        if headers.get("Authorization") == "Bearer t0ken":
            return SERVED
        challenge = f'Bearer realm="http://{server.host}/token",service="s",scope="x"'
        return 401, {"WWW-Authenticate": challenge}, b""

    server.answer = answer
    with client(server, also_from=Repository(server.host, "other")) as registry:
        assert registry.get("latest").digest == MANIFEST.digest


def test_no_password_goes_over_an_open_connection(server: Server) -> None:
    server.answer = lambda *_: (401, {"WWW-Authenticate": 'Bearer realm="http://example.org/token"'}, b"")
    with client(server) as registry, pytest.raises(RegistryError, match="open connection"):
        registry.get("latest")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_trouble_that_may_pass_is_tried_again(server: Server, status: int) -> None:
    left = [2]

    def answer(_method: str, path: str, _headers: dict[str, str], _body: bytes) -> Reply:
        if "latest" in path and left[0]:
            left[0] -= 1
            return status, {"Retry-After": "0"}, b""
        return SERVED

    server.answer = answer
    with client(server) as registry:
        assert registry.get("latest")


def test_pauses_double_and_heed_the_registry_and_end(server: Server) -> None:
    server.answer = lambda _m, path, *_: (503, {"Retry-After": "7"} if "slow" in path else {}, b"")
    pauses: list[float] = []
    with Registry(Repository(server.host, "x"), credentials=lambda _: None, sleep=pauses.append) as registry:
        with pytest.raises(RegistryError, match="HTTP 503"):
            registry.get("latest")
        assert pauses == [1, 2, 4, 8]
        pauses.clear()
        with pytest.raises(RegistryError):
            registry.get("slow")
        assert pauses == [7, 7, 7, 8]


def test_a_refusal_is_final_and_in_the_registrys_words(server: Server) -> None:
    server.answer = lambda *_: (403, {}, b'{"errors": [{"code": "DENIED", "message": "not yours"}]}')
    with client(server) as registry, pytest.raises(RegistryError, match="DENIED: not yours"):
        registry.put(MANIFEST, "latest")
    assert len([path for method, path, _ in server.seen if method == "PUT"]) == 1


def test_content_that_does_not_fit_its_digest_is_refused(server: Server) -> None:
    server.answer = lambda *_: (200, {"Content-Type": OCI_MANIFEST}, b"{}")
    wanted = "sha256:" + "0" * 64
    with client(server) as registry:
        with pytest.raises(UserError, match="the content is"):
            registry.get(wanted)
        with pytest.raises(UserError, match="does not fit"):
            registry.blob(Descriptor(media_type="x", digest=wanted, size=2))
        with pytest.raises(UserError, match="too many"):
            registry.blob(Descriptor(media_type="x", digest=wanted, size=10**12))


def test_what_is_not_there_is_none_or_told(server: Server) -> None:
    with client(server) as registry:
        assert registry.find("latest") is None
        with pytest.raises(UserError, match="no such image"):
            registry.get("latest")


def test_a_mount_that_is_not_granted_is_seen(server: Server) -> None:
    granted = "sha256:" + "1" * 64

    def answer(method: str, path: str, _headers: dict[str, str], _body: bytes) -> Reply:
        if method == "POST":
            assert path.endswith("&from=other")
            return (201, {}, b"") if granted in path else (202, {"Location": "/v2/staging/images/blobs/uploads/u"}, b"")
        return (204, {}, b"") if method == "DELETE" else (404, {}, b"")

    server.answer = answer
    source = Repository(server.host, "other")
    with client(server) as registry:
        assert registry.mount(granted, source)
        assert not registry.mount("sha256:" + "2" * 64, source)
    assert [path for method, path, _ in server.seen if method == "DELETE"] == ["/v2/staging/images/blobs/uploads/u"]


def store(*, referrers_api: bool) -> Callable[[str, str, dict[str, str], bytes], Reply]:
    """A registry in the little that attaching needs."""
    manifests: dict[str, tuple[str, bytes]] = {}
    blobs: dict[str, bytes] = {}

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        last = path.rpartition("/")[2]
        if "/referrers/" in path and referrers_api:
            entries = [
                referrer(Manifest(media_type=kind, content=content))
                for key, (kind, content) in manifests.items()
                if key.startswith("sha256:") and f'"digest":"{last}"' in content.decode() and kind == OCI_MANIFEST
            ]
            return 200, {"Content-Type": OCI_INDEX}, index(entries).content
        if "/manifests/" in path and method == "PUT":
            for key in (last, oci_digest(body)):
                manifests[key] = (headers["Content-Type"], body)
            subject = json.loads(body).get("subject", {}).get("digest", "")
            return 201, {"OCI-Subject": subject} if referrers_api and subject else {}, b""
        if "/manifests/" in path and last in manifests:
            kind, content = manifests[last]
            return 200, {"Content-Type": kind}, content
        if method == "POST":
            return 202, {"Location": "/v2/staging/images/blobs/uploads/u?state=1"}, b""
        if method == "PUT":
            (digest,) = re.findall(r"&digest=(sha256:.*)", path)
            blobs[digest] = body
            return 201, {}, b""
        return (200, {}, blobs[last]) if last in blobs else (404, {}, b"")

    return answer


@pytest.mark.parametrize("referrers_api", [True, False])
def test_attachments_are_found_with_and_without_the_api(server: Server, referrers_api: bool) -> None:
    server.answer = store(referrers_api=referrers_api)
    files = [File(name="sbom.json", media_type="application/json", content=b"[]")]
    with client(server) as registry:
        registry.put(MANIFEST, "latest")
        one = registry.attach(MANIFEST.descriptor, "application/x.one", files, {"a": "b"})
        two = registry.attach(MANIFEST.descriptor, "application/x.two", files)
        assert registry.attach(MANIFEST.descriptor, "application/x.two", files) == two
        found = {entry.digest: entry for entry in registry.referrers(MANIFEST.digest)}
        assert set(found) == {one.digest, two.digest}
        assert (found[one.digest].artifact_type, found[one.digest].annotations) == ("application/x.one", {"a": "b"})
        assert (registry.find(fallback_tag(MANIFEST.digest)) is None) == referrers_api
        (layer,) = registry.get(one.digest).layers
        assert registry.blob(layer) == b"[]"


def test_tags_come_in_pages(server: Server) -> None:
    def answer(_method: str, path: str, *_: object) -> Reply:
        if "last=b" in path:
            return 200, {}, b'{"tags": ["c"]}'
        more = {"Link": '</v2/staging/images/tags/list?n=1000&last=b>; rel="next"'}
        return 200, more, b'{"tags": ["a", "b"]}'

    server.answer = answer
    with client(server) as registry:
        assert registry.tags() == ("a", "b", "c")


def test_an_artifact_names_its_subject_by_digest_alone() -> None:
    subject = Descriptor.of(OCI_MANIFEST, b"x", annotations={"not": "this"})
    data = artifact(subject, "application/x.one", [], {}).data
    assert data["subject"] == {"mediaType": OCI_MANIFEST, "digest": oci_digest(b"x"), "size": 1}
    assert data["config"]["digest"] == oci_digest(b"{}")


@pytest.mark.parametrize(
    ("text", "host", "name"),
    [
        ("ghcr.io/me/images", "ghcr.io", "me/images"),
        ("127.0.0.1:5000/staging", "127.0.0.1:5000", "staging"),
        ("localhost/a", "localhost", "a"),
        ("[::1]:5000/a__b/c.d", "[::1]:5000", "a__b/c.d"),
    ],
)
def test_repositories(text: str, host: str, name: str) -> None:
    assert Repository.parse(text) == Repository(host, name) and str(Repository(host, name)) == text
    assert Reference.parse(f"{text}:v1") == Reference(Repository(host, name), "v1")
    digest = "sha256:" + "0" * 64
    assert str(Reference.parse(f"{text}:v1@{digest}")) == f"{text}@{digest}"


@pytest.mark.parametrize("text", ["images", "me/images", "ghcr.io/Me", "ghcr.io/", "https://ghcr.io/a", "ghcr.io/a b"])
def test_what_is_no_repository(text: str) -> None:
    with pytest.raises(UserError, match="is no repository"):
        Repository.parse(text)


@pytest.mark.parametrize("text", ["ghcr.io/a", "ghcr.io/a:", "127.0.0.1:5000/a", "ghcr.io/a@sha256:12"])
def test_what_names_no_image(text: str) -> None:
    with pytest.raises(UserError, match="names no image"):
        Reference.parse(text)


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "localhost:1", "127.1.2.3:5000", "[::1]:5000")))
    assert not any(map(is_loopback, ("ghcr.io", "localhost.example.org", "10.0.0.1:5000", "127.example.org")))


@pytest.mark.filterwarnings("ignore:docker-credential-not-there")
def test_credentials_come_from_dockers_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    pair = base64.b64encode(b"me:pass").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"ghcr.io": {"auth": pair}}}))
    found = docker_credentials("ghcr.io")
    assert found == Credentials(user="me", password="pass") and "pass" not in repr(found)
    assert docker_credentials("example.org") is None
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"ghcr.io": "not-there"}}))
    with pytest.raises(UserError, match=r"docker login ghcr\.io"):
        docker_credentials("ghcr.io")
