"""The registry client against a server of the test's own: what is read, sent, and sent again."""

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

MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')
MANIFEST_REPLY: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)
LAYER = bytes(range(256)) * 4096
"""1 MiB."""
LAYER_DIGEST = oci_digest(LAYER)
NOW = datetime(2026, 11, 22, tzinfo=UTC)


def open_registry(server: Server, repository: str = "images") -> Registry:
    """A client of a repository on the test's own server, without a login."""
    return Registry(Repository(server.host, repository), credentials=lambda _host: None)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client would have waited, without the first attempt again at once."""
    seconds_of_pauses: list[float] = []

    def wait(_stopping: object, seconds: float) -> None:
        if seconds:
            seconds_of_pauses.append(seconds)

    monkeypatch.setattr(registry_client, "wait", wait)
    # The clock by which a date in `Retry-After` is read.
    clock = SimpleNamespace(time=NOW.timestamp)
    monkeypatch.setattr(urllib3.util.retry, "time", clock)
    return seconds_of_pauses


# --- refusals -------------------------------------------------------------------------------------


def test_a_refusal_is_final_and_in_the_registrys_words(server: Server) -> None:
    denied = b'{"errors": [{"code": "DENIED", "message": "not yours"}]}'
    server.answer = lambda *_: (403, {}, denied)

    with (
        open_registry(server) as registry,
        pytest.raises(RegistryError, match="DENIED: not yours"),
    ):
        registry.put(MANIFEST, "latest")

    assert server.count("PUT") == 1


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "with an account that may read there, or, to publish, write"),
        (403, "docker login"),
        (404, "check the name"),
        (413, "client_max_body_size"),
        (409, "later"),
    ],
)
def test_a_refusal_says_what_to_do_about_it(server: Server, status: int, advice: str) -> None:
    server.answer = lambda *_: (status, {}, b"")

    with open_registry(server) as registry, pytest.raises(RegistryError) as error:
        registry.put(MANIFEST, "latest")

    assert advice in error.value.problems[0].then
    assert error.value.status == status


# --- reading --------------------------------------------------------------------------------------

OTHER_DIGEST = "sha256:" + "0" * 64


def test_a_manifest_that_does_not_fit_its_digest_is_refused(server: Server) -> None:
    server.answer = lambda *_: (200, {"Content-Type": OCI_MANIFEST}, b"{}")

    with open_registry(server) as registry, pytest.raises(UserError, match="the content is"):
        registry.get(OTHER_DIGEST)


@pytest.mark.parametrize(
    ("size", "cause"),
    [
        pytest.param(2, "does not fit", id="other content"),
        pytest.param(10**12, "too many", id="too large to be read into memory"),
    ],
)
def test_a_blob_that_does_not_fit_its_descriptor_is_refused(
    server: Server, size: int, cause: str
) -> None:
    server.answer = lambda *_: (200, {}, b"{}")
    descriptor = Descriptor(media_type="x", digest=OTHER_DIGEST, size=size)

    with open_registry(server) as registry, pytest.raises(UserError, match=cause):
        registry.blob(descriptor)


def test_of_an_answer_with_more_bytes_than_were_declared_little_is_read(server: Server) -> None:
    """Whoever may attach something may lie about its size."""
    content = bytes(64 << 20)
    server.answer = lambda *_: (200, {"Content-Type": OCI_MANIFEST}, content)
    small = Descriptor(media_type="x", digest=oci_digest(content), size=2)

    tracemalloc.start()
    try:
        with open_registry(server) as registry:
            with pytest.raises(RegistryError, match="more bytes than the 2 that are declared"):
                registry.blob(small)
            with pytest.raises(RegistryError, match="its manifest has more than 4194304 bytes"):
                registry.get("latest")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < len(content) // 2


def test_tags_are_read_from_all_pages(server: Server) -> None:
    def answer(_method: str, path: str, *_: object) -> Reply:
        if "last=b" in path:
            return 200, {}, b'{"tags": ["c"]}'
        next_page = {"Link": '</v2/images/tags/list?n=1000&last=b>; rel="next"'}
        return 200, next_page, b'{"tags": ["a", "b"]}'

    server.answer = answer

    with open_registry(server) as registry:
        assert registry.tags() == ("a", "b", "c")


# --- attempts -------------------------------------------------------------------------------------


def fail_first(
    server: Server,
    times: int,
    failure: Reply | None,
    answer_then: Answer,
    is_affected: Callable[[str, str], bool],
) -> None:
    """Let the server fail the first requests that `is_affected` (method, path) picks.

    `failure`: what it answers to them; None: nothing, the connection drops.
    """
    failures_left = [failure] * times

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if is_affected(method, path) and failures_left:
            return failures_left.pop()
        return answer_then(method, path, headers, body)

    server.answer = answer


def is_manifest(_method: str, path: str) -> bool:
    return "/manifests/" in path


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_request_is_sent_again_after_a_transient_status(server: Server, status: int) -> None:
    fail_first(server, 2, (status, {}, b""), lambda *_: MANIFEST_REPLY, is_manifest)

    with open_registry(server) as registry:
        manifest = registry.get("latest")

    assert manifest.digest == MANIFEST.digest
    assert server.count("GET", "latest") == 3


@pytest.mark.parametrize(
    ("dropped_method", "requests"),
    [
        # `get` and the look after `delete_tag` are both GET: two that drop, two that do not.
        ("GET", 4),
        ("PUT", 3),
        ("DELETE", 3),
    ],
)
def test_a_request_is_sent_again_after_a_dropped_connection(
    server: Server, dropped_method: str, requests: int
) -> None:
    fail_first(
        server,
        2,
        None,
        BlobRegistry().answer,
        lambda method, path: method == dropped_method and is_manifest(method, path),
    )

    with open_registry(server) as registry:
        registry.put(MANIFEST, "latest")
        assert registry.get("latest") == MANIFEST
        registry.delete_tag("nosuch")

    assert server.count(dropped_method, "manifests") == requests


@pytest.mark.parametrize("status", [200, 404])
def test_a_request_is_sent_again_after_a_body_that_breaks_off(server: Server, status: int) -> None:
    content = b"content"
    cut_off: Reply = (status, {"Content-Length": "100"}, b"half")
    fail_first(server, 2, cut_off, lambda *_: (200, {}, content), lambda *_: True)

    with open_registry(server) as registry:
        assert registry.blob(Descriptor.of("x", content)) == content

    assert server.count("GET", "/blobs/") == 3


@pytest.mark.parametrize(
    ("reply", "cause", "status"),
    [
        pytest.param(
            (503, {}, b'{"errors": [{"code": "BUSY", "message": "later"}]}'),
            "HTTP 503 BUSY: later",
            503,
            id="a status",
        ),
        pytest.param(None, "the connection broke", 0, id="a dropped connection"),
    ],
)
def test_the_fifth_failure_is_final_after_growing_pauses(
    server: Server, pauses: list[float], reply: Reply | None, cause: str, status: int
) -> None:
    server.answer = lambda *_: reply

    with open_registry(server) as registry, pytest.raises(RegistryError, match=cause) as error:
        registry.get("latest")

    assert server.count("GET", "latest") == 5
    assert pauses == [2, 4, 8], "the second attempt follows at once"
    assert error.value.status == status


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        pytest.param("7", [7, 7], id="seconds"),
        pytest.param("3600", [60, 60], id="at most a minute"),
        pytest.param(
            format_datetime(NOW + timedelta(seconds=30), usegmt=True), [30, 30], id="a date"
        ),
        # The second attempt follows at once, and the third after 2 seconds, as by default.
        pytest.param("soon", [2], id="no time"),
    ],
)
def test_a_registry_says_how_long_to_wait(
    server: Server, retry_after: str, seconds: list[float], pauses: list[float]
) -> None:
    too_many_requests: Reply = (429, {"Retry-After": retry_after}, b"")
    fail_first(server, 2, too_many_requests, lambda *_: MANIFEST_REPLY, is_manifest)

    with open_registry(server) as registry:
        assert registry.get("latest")

    assert pauses == seconds


# --- uploads --------------------------------------------------------------------------------------


def layer_chunks() -> Iterator[bytes]:
    """The layer in pieces of 64 KiB."""
    size = 1 << 16
    for start in range(0, len(LAYER), size):
        yield LAYER[start : start + size]


def upload(server: Server, registry: BlobRegistry, chunks: Chunks = layer_chunks) -> None:
    """Upload the layer to a registry that the server plays."""
    server.answer = registry.answer
    with open_registry(server) as opened:
        opened.put_stream(LAYER_DIGEST, len(LAYER), chunks)


def test_a_layer_is_sent_in_one_request(server: Server) -> None:
    registry = BlobRegistry()

    upload(server, registry)

    assert registry.blobs["images"] == {LAYER_DIGEST: LAYER}
    methods = [method for method, _path, _headers in server.seen if method != "GET"]
    assert methods == ["HEAD", "POST", "PATCH", "PUT", "HEAD"]
    assert "chunked" not in str(server.seen), "proxies want to know the length"


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param((500, {}, b""), id="500"),
        pytest.param((429, {"Retry-After": "1"}, b""), id="429"),
        pytest.param(None, id="the connection drops"),
    ],
)
def test_after_a_failure_the_whole_layer_is_sent_in_a_new_session(
    server: Server, method: str, failure: Reply | None
) -> None:
    registry = BlobRegistry()
    failures_left = [failure, failure]

    def fail_twice(asked_method: str, _path: str) -> Reply | bool | None:
        if asked_method == method and failures_left:
            return failures_left.pop()
        return True

    registry.before = fail_twice

    upload(server, registry)

    assert registry.blobs["images"] == {LAYER_DIGEST: LAYER}
    assert server.count("POST") == 3


def test_a_layer_is_sent_again_after_a_connection_that_broke_within_it(server: Server) -> None:
    registry = BlobRegistry()
    bytes_taken = [300_000, 200_000]

    def take(method: str, _path: str) -> int | None:
        """Return after how many bytes the connection breaks; None: it does not."""
        return bytes_taken.pop(0) if method == "PATCH" and bytes_taken else None

    server.takes = take

    upload(server, registry)

    assert registry.blobs["images"] == {LAYER_DIGEST: LAYER}
    assert server.count("PATCH") == 3


@pytest.mark.parametrize(
    ("host", "cause", "step"),
    [
        ("127.0.0.1:9", "nothing answers at this address", "see whether the registry runs"),
        ("registry.invalid", "this host is not known here", "check the host's name"),
    ],
)
@pytest.mark.usefixtures("pauses")
def test_a_connection_that_was_never_made_did_not_break(host: str, cause: str, step: str) -> None:
    with (
        Registry(Repository.parse(f"{host}/images")) as registry,
        pytest.raises(RegistryError, match=cause) as error,
    ):
        registry.get("latest")

    assert step in error.value.problems[0].then


def test_a_layer_is_sent_five_times_at_most(server: Server) -> None:
    server.takes = lambda method, _path: 0 if method == "PATCH" else None

    with pytest.raises(RegistryError, match="the connection broke"):
        upload(server, BlobRegistry())

    assert server.count("PATCH") == 5


def test_a_layer_that_arrived_is_not_sent_again_if_only_the_answer_was_lost(
    server: Server,
) -> None:
    registry = BlobRegistry()

    def answer(method: str, *arguments: Any) -> Reply | None:
        reply = registry.answer(method, *arguments)
        return None if method == "PUT" else reply

    server.answer = answer

    with open_registry(server) as opened:
        opened.put_stream(LAYER_DIGEST, len(LAYER), layer_chunks)

    assert registry.received == len(LAYER)
    assert server.count("POST") == 1


def test_a_digest_that_does_not_fit_the_content_is_final(server: Server) -> None:
    zeros = bytes(len(LAYER))

    with pytest.raises(RegistryError, match="DIGEST_INVALID"):
        upload(server, BlobRegistry(), lambda: iter([zeros]))

    assert server.count("PATCH") == 1


def test_an_error_while_a_layer_is_read_ends_its_upload(server: Server) -> None:
    def interrupted_chunks() -> Iterator[bytes]:
        yield LAYER[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upload(server, BlobRegistry(), interrupted_chunks)

    assert server.count("PUT") == 0


# --- blobs that are there -------------------------------------------------------------------------


def damaged_registry() -> BlobRegistry:
    """A registry that lost its power: it would take a second copy, and keep the first."""
    registry = BlobRegistry()
    registry.blobs["images"][LAYER_DIGEST] = b""
    return registry


def test_a_damaged_copy_in_the_registry_is_an_error_and_not_sent_again(server: Server) -> None:
    server.answer = damaged_registry().answer

    cause = r"holds 0 bytes of this blob, not 1048576(.|\n)*next: have who runs"
    with open_registry(server) as registry, pytest.raises(RegistryError, match=cause):
        registry.put_blob(LAYER)

    assert server.count("POST") == 0


def test_a_damaged_copy_in_the_registry_is_not_mounted(server: Server) -> None:
    server.answer = damaged_registry().answer
    source = Repository(server.host, "other")

    with open_registry(server) as registry, pytest.raises(RegistryError, match="holds 0 bytes"):
        registry.mount(LAYER_DIGEST, source, len(LAYER))

    assert server.count("POST") == 0


def test_a_damaged_copy_of_another_repository_is_seen_after_the_upload(server: Server) -> None:
    """docker-registry 2.8 takes the upload, and keeps its damaged copy."""
    registry = BlobRegistry()

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        reply = registry.answer(method, path, headers, body)
        registry.blobs["images"] = dict.fromkeys(registry.blobs["images"], b"part")
        return reply

    server.answer = answer

    with (
        open_registry(server) as opened,
        pytest.raises(RegistryError, match="holds 4 bytes of this blob, not 1048576"),
    ):
        opened.put_stream(LAYER_DIGEST, len(LAYER), layer_chunks)


def test_a_blob_whose_size_the_registry_does_not_say_is_taken_as_there(server: Server) -> None:
    """The specification asks for the size with "SHOULD"."""
    server.answer = lambda *_: (200, {"Content-Length": ""}, b"")

    with open_registry(server) as registry:
        registry.put_blob(LAYER)

        assert registry.has_blob("sha256:1", 5)
        assert registry.stat_blob("sha256:1") == (True, None)
    assert server.count("POST") == 0


@pytest.mark.parametrize(
    ("post_reply", "is_mounted", "cancelled"),
    [
        pytest.param((201, {}, b""), True, [], id="granted"),
        pytest.param(
            (202, {"Location": "/v2/images/blobs/uploads/u"}, b""),
            False,
            ["/v2/images/blobs/uploads/u"],
            id="an upload is expected instead",
        ),
    ],
)
def test_a_mount_that_is_not_granted_is_seen(
    server: Server, post_reply: Reply, is_mounted: bool, cancelled: list[str]
) -> None:
    def answer(method: str, path: str, _headers: dict[str, str], _body: bytes) -> Reply:
        if method == "POST":
            assert path.endswith("&from=other")
            return post_reply
        return (204, {}, b"") if method == "DELETE" else (404, {}, b"")

    server.answer = answer

    with open_registry(server) as registry:
        assert registry.mount(LAYER_DIGEST, Repository(server.host, "other")) is is_mounted

    deleted = [path for method, path, _headers in server.seen if method == "DELETE"]
    assert deleted == cancelled
