"""What is repeated and what is not, against a server that fails as it is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
import urllib3.util.retry

from images.registry import client as registry_client
from images.registry.client import Registry
from images.registry.distribution import OCI_MANIFEST, Descriptor, Manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import Answer, Reply, Server

MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')
SERVED: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)
CONTENT = b"content"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that are not waited."""
    found: list[float] = []
    now = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
    monkeypatch.setattr(urllib3.util.retry, "time", SimpleNamespace(time=lambda: now))
    monkeypatch.setattr(registry_client, "wait", lambda _, seconds: found.append(seconds) if seconds else None)
    return found


def client(server: Server) -> Registry:
    return Registry(Repository(server.host, "staging/images"), credentials=lambda _: None)


def failing(server: Server, times: int, failure: Reply | None, then: Answer, where: Callable[[str, str], bool]) -> None:
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
    failing(server, 2, None, BlobRegistry().answer, lambda asked, path: asked == method and manifests(asked, path))
    with client(server) as registry:
        registry.put(MANIFEST, "latest")
        assert registry.get("latest") == MANIFEST
        registry.delete_tag("nosuch")
    assert server.count(method, "manifests") == {"GET": 4, "PUT": 3, "DELETE": 3}[method]


@pytest.mark.parametrize("status", [200, 404])
def test_a_body_that_breaks_off_is_asked_for_again(server: Server, status: int, pauses: list[float]) -> None:
    broken: Reply = (status, {"Content-Length": "100"}, b"half")
    failing(server, 2, broken, lambda *_: (200, {}, CONTENT), lambda *_: True)
    with client(server) as registry:
        assert registry.blob(Descriptor.of("x", CONTENT)) == CONTENT
    assert server.count("GET", "/blobs/") == 3


@pytest.mark.parametrize(
    ("answered", "told", "status"),
    [
        ((503, {}, b'{"errors": [{"code": "BUSY", "message": "later"}]}'), "HTTP 503 BUSY: later", 503),
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
        (format_datetime(datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=30), usegmt=True), [30, 30]),
        ("soon", [2]),
    ],
)
def test_the_registry_says_how_long_to_wait(
    server: Server, said: str, seconds: list[float], pauses: list[float]
) -> None:
    failing(server, 2, (429, {"Retry-After": said}, b""), lambda *_: SERVED, manifests)
    with client(server) as registry:
        assert registry.get("latest")
    assert pauses == seconds
