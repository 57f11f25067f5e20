"""What stands under the tags of cosign: beside what others left there, and whatever others do at the same time."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema_rs import validator_for

from images.errors import UserError
from images.host.hashing import oci_digest
from images.publish import attachments
from images.publish.attachments import PublishedImage, attached_tag
from images.publish.statements import CYCLONEDX, TEST_RESULT
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support.attested import DIGEST
from tests.support.blob_registry import BlobRegistry
from tests.support.checkout import ROOT
from tests.support.http_server import Reply, Server, serving
from tests.support.published import (
    attach,
    days_ago,
    judge_again,
    pretend_cosign,
    published,
    result_of,
    said,
    validated,
)

TAG = "sha256-0.sig"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        found.answer = BlobRegistry().answer
        yield found


@pytest.fixture
def target(server: Server) -> Iterator[Registry]:
    with Registry(Repository(server.host, "x"), credentials=lambda _: None) as found:
        yield found


def layer(content: bytes, signature: str = "") -> Descriptor:
    return Descriptor.of("application/x", content, annotations={"signature": signature})


OLD, NEW, THEIRS = layer(b"ours of January"), layer(b"ours of March"), layer(b"theirs")
SIGNED = [layer(b"x", one) for one in "ab"]


@pytest.mark.parametrize(
    ("there", "new", "old", "left"),
    [
        ([], [NEW], [], [NEW]),
        ([OLD, THEIRS], [NEW], [OLD], [THEIRS, NEW]),
        (SIGNED[:1], SIGNED[1:], [], SIGNED),
        (SIGNED[:1], SIGNED[:1], [], SIGNED[:1]),
        ([THEIRS], [NEW], [], [THEIRS, NEW]),
    ],
)
def test_what_others_left_stays(
    target: Registry,
    there: list[Descriptor],
    new: list[Descriptor],
    old: list[Descriptor],
    left: list[Descriptor],
) -> None:
    for content in (b"{}", b"x", b"theirs", b"ours of January", b"ours of March"):
        target.put_blob(content)
    if there:
        target.put(image_manifest(Descriptor.of(OCI_CONFIG, b"{}"), there), TAG)
    for _ in range(2):
        attachments.update_layers(target, TAG, new, old)
        assert list(target.get(TAG).layers) == left, "the same again changes nothing"


@pytest.mark.parametrize(("overwritten", "holds"), [(4, True), (5, False)])
def test_the_last_of_five_writes_counts(
    target: Registry, server: Server, overwritten: int, holds: bool
) -> None:
    """Another machine writes the tag at the same time: registries have no conditional write."""
    right, left = server.answer, [overwritten]

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if method == "PUT" and path.endswith(TAG) and left[0]:
            left[0] -= 1
            return 201, {}, b""
        return right(method, path, headers, body)

    server.answer = answer
    target.put_blob(b"theirs")
    if holds:
        attachments.update_layers(target, TAG, [THEIRS])
        assert target.get(TAG).layers == (THEIRS,)
    else:
        with pytest.raises(RegistryError, match="concurrent writers"):
            attachments.update_layers(target, TAG, [THEIRS])
    assert server.count("PUT", TAG) == 5


def test_what_is_none_of_ours_or_cannot_be_read_counts_for_nothing(target: Registry) -> None:
    image = published(target, "one", date=days_ago(1))
    tag = attached_tag(image.manifest.digest, "att")
    kinds = {"application/vnd.dsse.envelope.v1+json": CYCLONEDX, "application/x": CYCLONEDX}
    broken = [
        Descriptor.of(kind, b"[]", annotations={"predicateType": said})
        for kind, said in kinds.items()
    ]
    other = Descriptor.of(next(iter(kinds)), b"[]", annotations={"predicateType": "https://x.org"})
    target.put_blob(b"[]")
    attachments.update_layers(target, tag, [*broken, other])
    assert attachments.load(target, image.manifest) == image


def test_a_run_of_another_image_is_refused(target: Registry) -> None:
    image = published(target, "one", date=days_ago(1))
    foreign = result_of([validated(oci_digest(b"another"), days_ago(1))])
    attach(target, "one", TEST_RESULT, foreign)
    with pytest.raises(UserError, match="the attestation is of sha256:"):
        _ = attachments.load(target, image.manifest).attestations


def test_with_a_key_only_what_it_signed_of_this_image_counts(
    target: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cosign is pretended. A statement of another image has a signature of the key that is valid, too."""
    pretend_cosign(monkeypatch)
    image, other = (
        published(target, name, date=days_ago(1), key="ours") for name in ("one", "two")
    )
    for key in ("", "theirs"):
        attach(target, "one", CYCLONEDX, {"components": []}, key)
    replayed = other.statements_of(TEST_RESULT)
    target.put_blob(replayed[0].envelope)
    attachments.update_layers(
        target,
        attached_tag(image.manifest.digest, "att"),
        [attachments.statement_layer(replayed[0])],
    )
    found = attachments.load(target, image.manifest)
    assert len(found.statements) == 6 and attachments.drop_untrusted(found, "") == found
    assert attachments.drop_untrusted(found, "ours").statements == image.statements
    assert [one.predicate for one in attachments.drop_untrusted(found, "theirs").statements] == [
        {"components": []}
    ]
    assert attachments.drop_untrusted(found, "nobody's").statements == ()


def test_what_a_promoted_statement_supersedes_goes_and_what_was_judged_there_alone_stays(
    target: Registry, server: Server
) -> None:
    image = published(target, "one", date=days_ago(9))
    with Registry(
        Repository(server.host, "y"), credentials=lambda _: None, mount_from=[target.repository]
    ) as there:
        attachments.mount_blobs(target, there, image.manifest)
        there.put(image.manifest, "one")
        attachments.copy_attachments(target, there, image.manifest.digest, "")
        judge_again(target, "one", date=days_ago(1))
        attachments.copy_attachments(target, there, image.manifest.digest, "")
        assert (
            attachments.load(there, image.manifest).statements
            == attachments.load(target, image.manifest).statements
        )
        own = said(image, TEST_RESULT, result_of([validated(image.image_id, days_ago(0))]))
        bare = PublishedImage(
            repository=there.repository, manifest=image.manifest, config={}, statements=()
        )
        attachments.attach(there, bare, [own], "")
        attachments.copy_attachments(target, there, image.manifest.digest, "")
        assert own in attachments.load(there, image.manifest).statements


POLICY = yaml.safe_load((ROOT / "examples" / "kubernetes" / "admission-policy.yaml").read_text())


def test_the_example_keeps_to_the_schema_of_its_reader_and_asks_for_what_a_test_result_says() -> (
    None
):
    schema = json.loads((ROOT / "tests" / "support" / "crds" / "clusterpolicies.json").read_text())
    assert [str(error.instance_path) for error in validator_for(schema).iter_errors(POLICY)] == []
    ((images,),) = [rule["verifyImages"] for rule in POLICY["spec"]["rules"]]
    (attestation,) = images["attestations"]
    assert attestation["type"] == TEST_RESULT
    said = result_of([validated(DIGEST, days_ago(1))])
    conditions = attestation["conditions"][0]["all"]
    for one in conditions:
        (path,) = re.findall(r"truetagTiers[.\w]+", one["key"])
        found: Any = said
        for key in path.split("."):
            found = found[key]
        assert found == one["value"] or path.endswith("measuredOn")
    assert len(conditions) == 3
