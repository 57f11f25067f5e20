"""The registry client against a server of the test's own, which fails as it is told: what is read, sent again."""

import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3.util.retry

from images.errors import UserError
from images.host.hashing import oci_digest
from images.registry import client as registry_client
from images.registry.client import Chunks, Registry
from images.registry.distribution import OCI_MANIFEST, Descriptor, Manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import Answer, Reply, Server


def client(server: Server) -> Registry:
    return Registry(Repository(server.host, "staging/images"), credentials=lambda _host: None)


MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')


def test_a_refusal_is_final_and_in_the_registrys_words(server: Server) -> None:
    server.answer = lambda *_: (
        403,
        {},
        b'{"errors": [{"code": "DENIED", "message": "not yours"}]}',
    )
    with client(server) as registry, pytest.raises(RegistryError, match="DENIED: not yours"):
        registry.put(MANIFEST, "latest")
    assert len([path for method, path, _ in server.seen if method == "PUT"]) == 1


@pytest.mark.parametrize(
    ("status", "then"),
    [
        (401, "docker login"),
        (403, "docker login"),
        (404, "check the name"),
        (413, "client_max_body_size"),
        (409, "later"),
    ],
)
def test_a_refusal_names_what_to_do_about_it(server: Server, status: int, then: str) -> None:
    server.answer = lambda *_: (status, {}, b"")
    with client(server) as registry, pytest.raises(RegistryError) as refused:
        registry.put(MANIFEST, "latest")
    assert then in refused.value.problems[0].then and refused.value.status == status


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


def test_of_more_than_was_declared_little_is_read(server: Server) -> None:
    """Whoever may attach something may lie about its size."""
    content = bytes(64 << 20)
    server.answer = lambda *_: (200, {"Content-Type": OCI_MANIFEST}, content)
    tracemalloc.start()
    try:
        with client(server) as registry:
            with pytest.raises(RegistryError, match="more bytes than the 2 that are declared"):
                registry.blob(Descriptor(media_type="x", digest=oci_digest(content), size=2))
            with pytest.raises(RegistryError, match="its manifest has more than 4194304 bytes"):
                registry.get("latest")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(content) // 2


def test_a_mount_that_is_not_granted_is_seen(server: Server) -> None:
    granted = "sha256:" + "1" * 64

    def answer(method: str, path: str, _headers: dict[str, str], _body: bytes) -> Reply:
        if method == "POST":
            assert path.endswith("&from=other")
            return (
                (201, {}, b"")
                if granted in path
                else (202, {"Location": "/v2/staging/images/blobs/uploads/u"}, b"")
            )
        return (204, {}, b"") if method == "DELETE" else (404, {}, b"")

    server.answer = answer
    source = Repository(server.host, "other")
    with client(server) as registry:
        assert registry.mount(granted, source)
        assert not registry.mount("sha256:" + "2" * 64, source)
    assert [path for method, path, _ in server.seen if method == "DELETE"] == [
        "/v2/staging/images/blobs/uploads/u"
    ]


def test_tags_come_in_pages(server: Server) -> None:
    def answer(_method: str, path: str, *_: object) -> Reply:
        if "last=b" in path:
            return 200, {}, b'{"tags": ["c"]}'
        more = {"Link": '</v2/staging/images/tags/list?n=1000&last=b>; rel="next"'}
        return 200, more, b'{"tags": ["a", "b"]}'

    server.answer = answer
    with client(server) as registry:
        assert registry.tags() == ("a", "b", "c")


SERVED: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)
BODY = b"content"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that are not waited."""
    found: list[float] = []
    now = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
    monkeypatch.setattr(urllib3.util.retry, "time", SimpleNamespace(time=lambda: now))
    monkeypatch.setattr(
        registry_client, "wait", lambda _, seconds: found.append(seconds) if seconds else None
    )
    return found


def failing(
    server: Server,
    times: int,
    failure: Reply | None,
    then: Answer,
    where: Callable[[str, str], bool],
) -> None:
    """Let the first requests that `where` (method, path) picks fail."""
    left = [times]

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if where(method, path) and left[0]:
            left[0] -= 1
            return failure
        return then(method, path, headers, body)

    server.answer = answer


def manifests(_method: str, path: str) -> bool:
    return "/manifests/" in path


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_transient_status_is_retried(server: Server, status: int, pauses: list[float]) -> None:
    failing(server, 2, (status, {}, b""), lambda *_: SERVED, manifests)
    with client(server) as registry:
        assert registry.get("latest").digest == MANIFEST.digest
    assert server.count("GET", "latest") == 3


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_dropped_connection_is_retried(server: Server, method: str, pauses: list[float]) -> None:
    failing(
        server,
        2,
        None,
        BlobRegistry().answer,
        lambda asked, path: asked == method and manifests(asked, path),
    )
    with client(server) as registry:
        registry.put(MANIFEST, "latest")
        assert registry.get("latest") == MANIFEST
        registry.delete_tag("nosuch")
    assert server.count(method, "manifests") == {"GET": 4, "PUT": 3, "DELETE": 3}[method]


@pytest.mark.parametrize("status", [200, 404])
def test_a_body_that_breaks_off_is_asked_for_again(
    server: Server, status: int, pauses: list[float]
) -> None:
    broken: Reply = (status, {"Content-Length": "100"}, b"half")
    failing(server, 2, broken, lambda *_: (200, {}, BODY), lambda *_: True)
    with client(server) as registry:
        assert registry.blob(Descriptor.of("x", BODY)) == BODY
    assert server.count("GET", "/blobs/") == 3


@pytest.mark.parametrize(
    ("answered", "told", "status"),
    [
        (
            (503, {}, b'{"errors": [{"code": "BUSY", "message": "later"}]}'),
            "HTTP 503 BUSY: later",
            503,
        ),
        (None, "the connection broke", 0),
    ],
)
def test_pauses_grow_and_end(
    server: Server, pauses: list[float], answered: Reply | None, told: str, status: int
) -> None:
    server.answer = lambda *_: answered
    with client(server) as registry, pytest.raises(RegistryError, match=told) as refused:
        registry.get("latest")
    assert pauses == [2, 4, 8] and server.count("GET", "latest") == 5, "the first retry is at once"
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", [7, 7]),
        ("3600", [60, 60]),
        (
            format_datetime(
                datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=30), usegmt=True
            ),
            [30, 30],
        ),
        ("soon", [2]),
    ],
)
def test_a_registry_says_how_long_to_wait(
    server: Server, said: str, seconds: list[float], pauses: list[float]
) -> None:
    failing(server, 2, (429, {"Retry-After": said}, b""), lambda *_: SERVED, manifests)
    with client(server) as registry:
        assert registry.get("latest")
    assert pauses == seconds


CONTENT = bytes(range(256)) * 4096
"""1 MiB."""
DIGEST = oci_digest(CONTENT)


def chunks() -> Iterator[bytes]:
    """Pieces of 64 KiB."""
    for start in range(0, len(CONTENT), 1 << 16):
        yield CONTENT[start : start + (1 << 16)]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)


def uploader(server: Server) -> Registry:
    return Registry(Repository(server.host, "x"), credentials=lambda _host: None)


def put(server: Server, registry: BlobRegistry, content: Chunks = chunks) -> None:
    server.answer = registry.answer
    with uploader(server) as opened:
        opened.put_stream(DIGEST, len(CONTENT), content)


def test_a_layer_is_sent_in_one_request(server: Server) -> None:
    registry = BlobRegistry()
    put(server, registry)
    assert registry.blobs["x"] == {DIGEST: CONTENT}
    assert [method for method, _, _ in server.seen if method in ("HEAD", "POST", "PATCH", "PUT")] == [
        "HEAD", "POST", "PATCH", "PUT", "HEAD",
    ]  # fmt: skip
    assert "chunked" not in str(server.seen), "proxies want to know the length"


def test_one_that_is_there_in_part_is_told(server: Server) -> None:
    """A registry that lost its power. It would take a second copy, and keep the first."""
    damaged = BlobRegistry()
    damaged.blobs["x"][DIGEST] = b""
    server.answer = damaged.answer
    with uploader(server) as registry:
        with pytest.raises(
            RegistryError, match=r"holds 0 bytes of it, not 1048576(.|\n)*next: have who runs"
        ):
            registry.put_blob(CONTENT)
        with pytest.raises(RegistryError, match="holds 0 bytes"):
            registry.mount(DIGEST, Repository(server.host, "y"), len(CONTENT))
    assert server.count("POST") == 0


def test_one_that_the_registry_had_in_part_elsewhere_is_told(server: Server) -> None:
    """In another repository: docker-registry 2.8 takes the upload, and keeps its damaged copy."""
    registry = BlobRegistry()

    def damaged(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        right = registry.answer(method, path, headers, body)
        registry.blobs["x"] = dict.fromkeys(registry.blobs["x"], b"part")
        return right

    server.answer = damaged
    with (
        uploader(server) as opened,
        pytest.raises(RegistryError, match="holds 4 bytes of it, not 1048576"),
    ):
        opened.put_stream(DIGEST, len(CONTENT), chunks)


def test_one_whose_size_is_not_said_is_taken_as_there(server: Server) -> None:
    """The specification asks for it with "SHOULD"."""
    server.answer = lambda *_: (200, {"Content-Length": ""}, b"")
    with uploader(server) as registry:
        registry.put_blob(CONTENT)
        assert registry.has_blob("sha256:1", 5) and registry.stat_blob("sha256:1") == (True, None)
    assert server.count("POST") == 0


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
@pytest.mark.parametrize(
    "failure", [(500, {}, b""), (429, {"Retry-After": "1"}, b""), None], ids=["500", "429", "cut"]
)
def test_after_a_failure_the_whole_layer_is_sent_in_a_new_session(
    server: Server, method: str, failure: Reply | None
) -> None:
    left, registry = [failure, failure], BlobRegistry()
    registry.before = lambda asked, _path: left.pop() if asked == method and left else True
    put(server, registry)
    assert registry.blobs["x"] == {DIGEST: CONTENT} and server.count("POST") == 3


def test_a_connection_that_breaks_in_a_layer_is_tried_five_times(server: Server) -> None:
    breaks, registry = [300_000, 200_000], BlobRegistry()
    server.takes = lambda method, _path: breaks.pop(0) if method == "PATCH" and breaks else None
    put(server, registry)
    assert registry.blobs["x"] == {DIGEST: CONTENT} and server.count("PATCH") == 3
    server.seen.clear()
    server.takes = lambda method, _path: 0 if method == "PATCH" else None
    with pytest.raises(RegistryError, match="the connection broke"):
        put(server, BlobRegistry())
    assert server.count("PATCH") == 5


def test_an_end_whose_answer_is_lost_is_noticed(server: Server) -> None:
    registry = BlobRegistry()

    def silent(method: str, *rest: Any) -> Reply | None:
        right = registry.answer(method, *rest)
        return None if method == "PUT" else right

    server.answer = silent
    with uploader(server) as opened:
        opened.put_stream(DIGEST, len(CONTENT), chunks)
    assert registry.received == len(CONTENT) and server.count("POST") == 1


def test_a_digest_that_does_not_fit_is_final(server: Server) -> None:
    with pytest.raises(RegistryError, match="DIGEST_INVALID"):
        put(server, BlobRegistry(), lambda: iter([bytes(len(CONTENT))]))
    assert server.count("PATCH") == 1


def test_what_a_layer_raises_ends_its_upload(server: Server) -> None:
    def interrupted() -> Iterator[bytes]:
        yield CONTENT[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put(server, BlobRegistry(), interrupted)
    assert server.count("PUT") == 0
