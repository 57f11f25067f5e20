"""What is kept under the tags of cosign when an image is copied to where others signed it."""

from collections.abc import Iterator

import pytest

from images.publish.statements import store
from images.publish.statements.dsse import ENVELOPE
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.reference import Repository
from tests.support.http_server import registry_answers, serving

TAG = "sha256-0.sig"


def layer(content: bytes, **annotations: str) -> Descriptor:
    return Descriptor.of(ENVELOPE, content, annotations=annotations)


def statement(content: bytes, key: str) -> Descriptor:
    return Descriptor.of(ENVELOPE, content, annotations={store.KEY: key})


OURS, NEWER, THEIRS = statement(b"of January", "ours"), statement(b"of March", "ours"), statement(b"of March", "theirs")


@pytest.mark.parametrize(
    ("there", "copied", "left"),
    [
        ([], [NEWER], [NEWER]),
        ([OURS], [NEWER], [NEWER]),
        ([OURS, THEIRS], [NEWER], [THEIRS, NEWER]),
        ([layer(b"x", signature="a")], [layer(b"x", signature="b")], [layer(b"x", signature=one) for one in "ab"]),
        ([layer(b"x", signature="a")], [layer(b"x", signature="a")], [layer(b"x", signature="a")]),
        ([layer(b"plain cosign's")], [NEWER], [layer(b"plain cosign's"), NEWER]),
    ],
)
def test_what_other_keys_signed_is_left(
    there: list[Descriptor], copied: list[Descriptor], left: list[Descriptor]
) -> None:
    assert list(store.joined(there, copied)) == left
    assert store.joined(left, copied) == tuple(left), "the same copy again changes nothing"


@pytest.fixture
def target() -> Iterator[Registry]:
    with serving() as server, Registry(Repository(server.host, "x"), credentials=lambda _: None) as found:
        server.answer = registry_answers()
        yield found


def of(*layers: Descriptor) -> Manifest:
    return image_manifest(Descriptor.of(OCI_CONFIG, b"{}"), layers)


def test_a_tag_is_copied_byte_by_byte_where_nobody_else_signed(target: Registry) -> None:
    for signature in (of(OURS), of(NEWER)):
        store.join(target, signature, TAG)
        assert target.get(TAG) == signature


def test_a_tag_holds_what_others_left_and_what_is_copied(target: Registry) -> None:
    target.put(of(THEIRS, OURS), TAG)
    store.join(target, of(NEWER), TAG)
    found = target.get(TAG)
    assert found.layers == (THEIRS, NEWER)
    assert b'"diff_ids":["%b","%b"]' % (THEIRS.digest.encode(), NEWER.digest.encode()) in target.blob(found.config)
