"""The registry client against a server of the test's own: mounts, pages, wrong content."""

import tracemalloc

import pytest

from images.errors import UserError
from images.host.hashing import oci_digest
from images.registry.client import Registry
from images.registry.distribution import OCI_MANIFEST, Descriptor, Manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support.http_server import Reply, Server


def client(server: Server) -> Registry:
    return Registry(Repository(server.host, "staging/images"), credentials=lambda _host: None)


MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')


def test_a_refusal_is_final_and_in_the_registrys_words(server: Server) -> None:
    server.answer = lambda *_: (403, {}, b'{"errors": [{"code": "DENIED", "message": "not yours"}]}')
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
            return (201, {}, b"") if granted in path else (202, {"Location": "/v2/staging/images/blobs/uploads/u"}, b"")
        return (204, {}, b"") if method == "DELETE" else (404, {}, b"")

    server.answer = answer
    source = Repository(server.host, "other")
    with client(server) as registry:
        assert registry.mount(granted, source)
        assert not registry.mount("sha256:" + "2" * 64, source)
    assert [path for method, path, _ in server.seen if method == "DELETE"] == ["/v2/staging/images/blobs/uploads/u"]


def test_tags_come_in_pages(server: Server) -> None:
    def answer(_method: str, path: str, *_: object) -> Reply:
        if "last=b" in path:
            return 200, {}, b'{"tags": ["c"]}'
        more = {"Link": '</v2/staging/images/tags/list?n=1000&last=b>; rel="next"'}
        return 200, more, b'{"tags": ["a", "b"]}'

    server.answer = answer
    with client(server) as registry:
        assert registry.tags() == ("a", "b", "c")
