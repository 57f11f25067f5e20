"""The registry client against a server of the test's own: mounts, referrers, pages, wrong content."""

import tracemalloc

import pytest

from images.errors import UserError
from images.host.hashing import oci_digest
from images.registry.client import Registry
from images.registry.distribution import OCI_MANIFEST, Descriptor, File, Manifest, index, referrers_tag
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support.http_server import Reply, Server, registry_answers


def client(server: Server) -> Registry:
    return Registry(Repository(server.host, "staging/images"), credentials=lambda _host: None)


MANIFEST = Manifest(media_type=OCI_MANIFEST, content=b'{"schemaVersion": 2}')
SERVED: Reply = (200, {"Content-Type": OCI_MANIFEST}, MANIFEST.content)


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


def test_a_manifest_of_the_largest_size_is_read(server: Server) -> None:
    content = b" " * (4 << 20)
    server.answer = lambda *_: (200, {"Content-Type": OCI_MANIFEST}, content)
    with client(server) as registry:
        assert registry.get("latest").content == content


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


@pytest.mark.parametrize("referrers_api", [True, False])
def test_attachments_are_found_with_and_without_the_api(server: Server, referrers_api: bool) -> None:
    server.answer = registry_answers(referrers_api=referrers_api)
    files = [File(name="sbom.json", media_type="application/json", content=b"[]")]
    with client(server) as registry:
        registry.put(MANIFEST, "latest")
        one = registry.attach(MANIFEST.descriptor, "application/x.one", files, {"a": "b"})
        two = registry.attach(MANIFEST.descriptor, "application/x.two", files)
        assert registry.attach(MANIFEST.descriptor, "application/x.two", files) == two
        found = {entry.digest: entry for entry in registry.referrers(MANIFEST.digest)}
        assert set(found) == {one.digest, two.digest}
        assert (found[one.digest].artifact_type, found[one.digest].annotations) == ("application/x.one", {"a": "b"})
        assert (registry.find(referrers_tag(MANIFEST.digest)) is None) == referrers_api
        (layer,) = registry.get(one.digest).layers
        assert registry.blob(layer) == b"[]"


@pytest.mark.parametrize("deletion", [202, 405])
def test_what_another_writer_dropped_from_the_list_is_listed_again(server: Server, deletion: int) -> None:
    """It had read the list before ours was in it. What was removed or replaced on purpose stays away."""
    server.answer = registry_answers(referrers_api=False, deletion=deletion)
    with client(server) as registry, client(server) as other:
        registry.put(MANIFEST, "latest")
        ours, removed = (registry.attach(MANIFEST.descriptor, f"application/x.{name}", []) for name in "ab")
        gone = registry.attach(MANIFEST.descriptor, "application/x.c", [], {"key": "ours"})
        registry.detach(MANIFEST.digest, removed.digest)
        other.detach(MANIFEST.digest, gone.digest)
        other.put(index([]), referrers_tag(MANIFEST.digest))
        file = File(name="newer.json", media_type="application/json", content=b"[]")
        theirs = other.attach(MANIFEST.descriptor, "application/x.c", [file], {"key": "ours"})
        assert registry.referrers(MANIFEST.digest) == (theirs,)
        registry.relist_referrers()
        assert registry.referrers(MANIFEST.digest) == (theirs, ours)
        writes = server.count("PUT", referrers_tag(MANIFEST.digest))
        registry.relist_referrers()
        assert server.count("PUT", referrers_tag(MANIFEST.digest)) == writes


@pytest.mark.parametrize(("overwritten", "listed"), [(4, True), (5, False)])
def test_the_last_of_five_writes_counts(server: Server, overwritten: int, listed: bool) -> None:
    right, left = registry_answers(referrers_api=False), [overwritten]

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if method == "PUT" and path.endswith(referrers_tag(MANIFEST.digest)) and left[0]:
            left[0] -= 1
            return 201, {}, b""
        return right(method, path, headers, body)

    server.answer = answer
    with client(server) as registry:
        if listed:
            entry = registry.attach(MANIFEST.descriptor, "application/x.one", [])
            assert registry.referrers(MANIFEST.digest) == (entry,)
        else:
            with pytest.raises(RegistryError, match="concurrent writers"):
                registry.attach(MANIFEST.descriptor, "application/x.one", [])
    assert server.count("PUT", referrers_tag(MANIFEST.digest)) == 5


@pytest.mark.parametrize(
    ("referrers_api", "deletion", "gone"),
    [(True, 202, True), (False, 202, True), (True, 405, False), (False, 405, True), (True, 403, False)],
)
def test_what_refers_to_an_image_can_be_removed(server: Server, referrers_api: bool, deletion: int, gone: bool) -> None:
    """Where manifests can't be deleted, a registry without the API still has a list that is ours to write."""
    server.answer = registry_answers(referrers_api=referrers_api, deletion=deletion)
    files = [File(name="sbom.json", media_type="application/json", content=b"[]")]
    with client(server) as registry:
        registry.put(MANIFEST, "latest")
        one, two = (registry.attach(MANIFEST.descriptor, f"application/x.{name}", files) for name in ("one", "two"))
        assert registry.detach(MANIFEST.digest, one.digest) is gone
        left = {entry.digest for entry in registry.referrers(MANIFEST.digest)}
        assert left == ({two.digest} if gone else {one.digest, two.digest})
        if gone and deletion == 202:
            assert registry.find(one.digest) is None and registry.detach(MANIFEST.digest, one.digest)


def test_tags_come_in_pages(server: Server) -> None:
    def answer(_method: str, path: str, *_: object) -> Reply:
        if "last=b" in path:
            return 200, {}, b'{"tags": ["c"]}'
        more = {"Link": '</v2/staging/images/tags/list?n=1000&last=b>; rel="next"'}
        return 200, more, b'{"tags": ["a", "b"]}'

    server.answer = answer
    with client(server) as registry:
        assert registry.tags() == ("a", "b", "c")
