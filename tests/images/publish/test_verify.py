"""What `verify` says: of tags by labels, matrix and key; of labels, SBOM, statements, indexes. cosign is pretended."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from images.errors import UserError
from images.publish import attachments, statements
from images.publish import verify as verification
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.release import promote
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Statement
from images.publish.tags import ImageVersion, find_step_back, immutable_tag, version_of
from images.publish.verify import Check, verify
from images.registry import distribution
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Reference, Repository
from tests.support.attested import NAME, PIP
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import CLAIMS, days_ago, pretend_cosign, published, validated
from validate.claims import Tier
from validate.judging import Status

KEY = "cosign.key"
POLICY = ReleasePolicy(
    gate=(Tier.STATIC,),
    alias_gate=(Tier.STATIC,),
    aliases_of=lambda name: ("latest",) if name == NAME else (),
    claims_of=lambda _labels, _run: CLAIMS,
)
NO_MATRIX = replace(
    POLICY,
    aliases_of=lambda _name: (),
    claims_of=lambda _labels, run: run.claim_set,
    own_claims=True,
)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    pretend_cosign(monkeypatch)
    with serving() as server, Registry(Repository(server.host, "images")) as found:
        server.answer = BlobRegistry().answer
        yield found


def signed(
    target: Registry, content: str, *names: str, name: str = NAME, key: str = KEY
) -> PublishedImage:
    """An image that a key signed for some tags, which name it then."""
    image = published(target, content, date=days_ago(1), key=key, name=name)
    attachments.sign_image(target, image.manifest.digest, key, key, names)
    for tag in names:
        target.put(image.manifest, tag)
    return image


def check(
    target: Registry, tag: str, policy: ReleasePolicy = POLICY, key: str = KEY, of: str = "tag"
) -> Check:
    found = verify(Reference(target.repository, tag), policy, key=key, unsigned=not key)[1]
    return next(one for one in found if one.subject.startswith(of))


def told(target: Registry, tag: str, policy: ReleasePolicy = POLICY, key: str = KEY) -> str:
    """What is said against a tag; empty: nothing."""
    found = check(target, tag, policy, key)
    return found.reason if found.status is Status.FAIL else ""


def test_the_tags_that_a_key_signed_are_those_of_the_image(target: Registry) -> None:
    image = signed(target, "one", NAME, "latest", f"{NAME}-20261121-000000000000")
    assert [told(target, tag) for tag in (NAME, "latest")] == ["", ""]
    assert "whose tags are" in told(target, f"{NAME}-20261121-000000000000"), (
        "another build's dated tag"
    )
    digest = Reference(target.repository, image.manifest.digest)
    assert "tag" not in [one.subject for one in verify(digest, POLICY, key=KEY)[1]]


@pytest.mark.parametrize("key", [KEY, ""])
def test_an_image_under_another_ones_tag_is_told_with_both_names(
    target: Registry, key: str
) -> None:
    image = signed(target, "one", NAME, "latest")
    other = signed(target, "other", "cu128-torch28", name="cu128-torch28")
    target.put(image.manifest, "cu128-torch28")
    target.put(other.manifest, "latest")
    short = image.manifest.digest[:19]
    assert told(target, "cu128-torch28", key=key).startswith(
        f"cu128-torch28 names {NAME} ({short}), whose tags are"
    )
    assert told(target, "latest", key=key).startswith("latest names cu128-torch28 (")


@pytest.mark.parametrize("policy", [POLICY, NO_MATRIX])
def test_an_older_signed_build_of_a_moving_tag_is_told_with_digests(
    target: Registry, policy: ReleasePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1 << 61])  # that of the first machine is ahead
    monkeypatch.setattr(attachments.time, "time_ns", lambda: next(clock, 1))
    old, new = (signed(target, content, NAME, "latest") for content in ("old", "new"))
    assert [told(target, tag, policy) for tag in (NAME, "latest")] == ["", ""]
    for tag in (NAME, "latest"):
        target.put(old.manifest, tag)
        reason = told(target, tag, policy)
        was, is_now = new.manifest.digest[:19], old.manifest.digest[:19]
        assert reason.startswith(f"{tag} names {is_now}; the key signed {was} for it last, 20")
    assert told(target, NAME, key="") == "", "without a key nobody knows"
    attachments.sign_image(target, old.manifest.digest, KEY, KEY, [NAME, "latest"])
    assert told(target, NAME, policy) == "", "an index that lost a platform is one of before"


@pytest.mark.parametrize("policy", [POLICY, NO_MATRIX])
def test_a_tag_that_the_key_did_not_sign_is_told(target: Registry, policy: ReleasePolicy) -> None:
    """One that another key signed, too."""
    image = signed(target, "one", NAME)
    attachments.sign_image(target, image.manifest.digest, "other.key", "other.key", ["latest"])
    target.put(image.manifest, "latest")
    short = image.manifest.digest[:19]
    assert (
        told(target, "latest", policy)
        == f"latest names {NAME} ({short}), which the key did not sign for it"
    )


def test_what_another_key_signs_later_moves_no_tag(target: Registry) -> None:
    signed(target, "one", NAME)
    other = signed(target, "other", key="other.key")
    attachments.sign_image(target, other.manifest.digest, "other.key", "other.key", [NAME])
    assert told(target, NAME) == ""


def test_without_a_matrix_and_a_key_nothing_says_what_an_image_must_hold(target: Registry) -> None:
    signed(target, "one", NAME)
    by_key, by_nobody = (check(target, NAME, NO_MATRIX, key, "gate") for key in (KEY, ""))
    assert (by_key.status, by_nobody.status) == (Status.PASS, Status.UNPROVEN)
    assert "for which the key stands" in by_key.reason and "no key stands for" in by_nobody.reason


@pytest.fixture
def production(target: Registry) -> Iterator[Registry]:
    with Registry(Repository(target.repository.host, "production")) as found:
        yield found


def dated(image: PublishedImage) -> str:
    return immutable_tag(NAME, version_of(image).created, image.image_id)


def test_a_promotion_moves_no_tag_that_the_key_did_not_sign(
    target: Registry, production: Registry
) -> None:
    """Staging may leave an alias where it is; whoever promotes has the public key alone."""
    image = published(target, "one", date=days_ago(1), key=KEY)
    place = Reference(target.repository, image.manifest.digest)
    attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME])
    with pytest.raises(UserError) as refused:
        promote(place, production.repository, POLICY, key=KEY)
    (problem,) = refused.value.problems
    assert (
        problem.where == f"{production.repository}:{dated(image)}"
        and "the key did not sign" in problem.cause
    )
    assert "publish" in problem.then and "--key cosign.key" in problem.then
    assert production.find(NAME) is None
    attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME, dated(image)])
    done = promote(place, production.repository, POLICY, key=KEY)
    assert set(done.tags) == {NAME, dated(image)}
    assert [
        text.startswith("latest stays: the key did not sign") for text in done.unmoved_aliases
    ] == [True]
    assert not told(production, NAME) and not told(production, dated(image))
    attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME, dated(image), "latest"])
    assert "latest" in promote(place, production.repository, POLICY, key=KEY).tags
    assert not told(production, "latest")


def test_a_promotion_takes_no_tag_that_was_moved_back(
    target: Registry, production: Registry
) -> None:
    staged = Reference(target.repository, NAME)
    old, new = (published(target, content, date=days_ago(1), key=KEY) for content in ("old", "new"))
    for image in (old, new):
        attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME, dated(image)])
    target.put(old.manifest, NAME)
    with pytest.raises(UserError, match=f"the key signed {new.manifest.digest[:19]} for it last"):
        promote(staged, production.repository, POLICY, key=KEY)
    target.put(new.manifest, NAME)
    assert NAME in promote(staged, production.repository, POLICY, key=KEY).tags
    assert production.get(NAME).digest == new.manifest.digest


def test_an_index_of_production_alone_takes_no_tag_from_a_signed_one(
    target: Registry, production: Registry
) -> None:
    """The platform that joins is there under its own name; the row's name stays."""
    row = ("cu130-torch211", "cu130-torch211-arm64")
    policy = replace(POLICY, row_of=lambda _name: row, claims_of=lambda _labels, run: run.claim_set)
    said = list[str]()
    for name in row:
        image = published(target, name, date=days_ago(1), key=KEY, name=name)
        fixed = immutable_tag(name, version_of(image).created, image.image_id)
        attachments.sign_image(target, image.manifest.digest, KEY, KEY, [name, fixed])
        done = promote(Reference(target.repository, name), production.repository, policy, key=KEY)
        assert set(done.tags) == {fixed, *([name] if name != row[0] else [])}
        said += done.unmoved_aliases
    (of_row,) = [text for text in said if text.startswith(f"{row[0]} stays: the key signed ")]
    assert f"{target.repository}:{row[0]} --to" in of_row and production.find(row[0]) is None


# --- SBOM and statements against the image ------------------------------------------------------------


def labels(**more: str) -> dict[str, str]:
    own = {"image": NAME, "pins": '{"pip":"26.3"}', **more}
    return {f"dev.truetag.{key.replace('_', '-')}": value for key, value in own.items()}


# --- what anybody may attach ----------------------------------------------------------------------------------------


def with_attached(predicate_type: str, predicate: Any, digest: str = "") -> PublishedImage:
    """An image with a validation run, what is said of it, and a statement that says nothing for the others."""
    config = json.dumps({"config": {"Labels": labels()}}).encode()
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [])
    run = statements.make_test_result([validated(manifest.config.digest, days_ago(1), [PIP])])
    every = {TEST_RESULT: run, CYCLONEDX: {}, PROVENANCE: {}, predicate_type: predicate}
    attached = (
        Statement.of(kind, said, repository="x.org/y", digest=digest or manifest.digest)
        for kind, said in every.items()
    )
    return PublishedImage(
        repository=Repository("x.org", "y"),
        manifest=manifest,
        config=json.loads(config),
        statements=tuple(attached),
    )


def fault_of(image: PublishedImage, subject: str) -> str:
    """Why a check fails."""
    found = {check.subject: check for check in verification.check_statements(image)}[subject]
    assert found.status is Status.FAIL
    return found.reason


def test_the_sbom_is_compared_with_the_label() -> None:
    good = {"components": [{"purl": "pkg:pypi/pip@26.3"}, {"purl": "pkg:pypi/more@1"}]}
    found = {
        check.subject: check
        for check in verification.check_statements(with_attached(CYCLONEDX, good))
    }["SBOM"]
    assert found.status is Status.PASS
    assert (
        fault_of(with_attached(CYCLONEDX, {}), "SBOM") == "pip 26.3 is labelled, the SBOM has none"
    )


@pytest.mark.parametrize(
    "predicate",
    ["x", 5, {"components": 5, "buildDefinition": 5}, {"components": ["x"], "buildDefinition": []}],
)
@pytest.mark.parametrize("predicate_type", [CYCLONEDX, PROVENANCE])
def test_what_others_attached_is_a_fault_whatever_its_form(
    predicate_type: str, predicate: Any
) -> None:
    found = with_attached(predicate_type, predicate)
    assert "can't be read" in fault_of(found, statements.NAMES[predicate_type])
    with pytest.raises(UserError, match=r"cosign clean.*or publish with --key"):
        verification.require_sound(found)


def test_a_statement_about_another_image_is_a_fault() -> None:
    other = "sha256:" + "0" * 64
    assert (
        fault_of(with_attached(CYCLONEDX, {}, other), "attestation")
        == f"its test result is of {other}"
    )
    faults = verification.find_statement_faults(with_attached(CYCLONEDX, {}, other), CYCLONEDX)
    assert faults[0].startswith(f"is of {other}")


def test_a_test_result_that_says_more_than_its_evidence_is_a_fault() -> None:
    said = with_attached(CYCLONEDX, {}).statements_of(TEST_RESULT)[0].predicate
    lie = {**said, "passedTests": [*said["passedTests"], "gpu/numerics/matmul"]}
    why = "its test result is not what the evidence says: passedTests differ in gpu/numerics/matmul"
    assert fault_of(with_attached(TEST_RESULT, lie), "attestation") == why


def test_an_attestation_of_claims_with_numbers_is_told_to_be_one_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = with_attached(CYCLONEDX, {})
    older = tuple(
        one.replace(b'"schema_version": 3', b'"schema_version": 2')
        for one in found.statements_of(TEST_RESULT)[0].evidence
    )
    monkeypatch.setattr(Statement, "evidence", property(lambda _: older))
    told = fault_of(found, "attestation")
    assert (
        "schema version 2, in which claims had numbers" in told
        and "can't be converted: verify it with" in told
    )


@pytest.mark.parametrize(
    "predicate", [{}, {"configuration": 5}, {"configuration": [{"content": "?"}]}]
)
def test_a_test_result_that_cannot_be_read_is_told(predicate: Any) -> None:
    assert "can't be read" in fault_of(with_attached(TEST_RESULT, predicate), "attestation")


@pytest.mark.parametrize("predicate", [None, "no object"])
def test_a_test_result_that_is_no_object_fails_the_checks_of_statements_and_gate(
    predicate: Any,
) -> None:
    """Anybody who may push may attach one."""
    image = with_attached(TEST_RESULT, predicate)

    checks = verification.check_image(image, POLICY, key="", unsigned=True)

    reasons = {check.subject: check.reason for check in checks if check.status is Status.FAIL}
    assert list(reasons) == ["attestation", "gate static"]
    assert all("its test result can't be read" in reason for reason in reasons.values())


# --- indexes of images for several platforms --------------------------------------------------------------------------

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
AMD64, ARM64 = "linux/amd64", "linux/arm64"
NAMES = {AMD64: "cu130-torch211", ARM64: "cu130-torch211-arm64"}


def unlabelled(platform: str, name: str = "") -> PublishedImage:
    labels = {"dev.truetag.image": name or NAMES[platform]}
    system, _, architecture = platform.partition("/")
    config = {"os": system, "architecture": architecture, "config": {"Labels": labels}}
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, json.dumps(config).encode()), [])
    return PublishedImage(
        repository=Repository("x.org", "y"), manifest=manifest, config=config, statements=()
    )


PAIR = (unlabelled(AMD64), unlabelled(ARM64))


def test_an_index_has_an_entry_for_each_platform_and_the_same_bytes_in_any_order() -> None:
    made = attachments.make_index(PAIR)
    assert made.digest == attachments.make_index(PAIR[::-1]).digest
    assert made.data["manifests"] == [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": one.manifest.digest,
            "size": len(one.manifest.content),
            "platform": {"architecture": platform.removeprefix("linux/"), "os": "linux"},
        }
        for platform, one in zip((AMD64, ARM64), PAIR, strict=True)
    ]
    assert [entry.platform for entry in made.manifests] == [AMD64, ARM64]
    assert verification.check_index(made, PAIR).status is Status.PASS


@pytest.mark.parametrize(
    ("images", "listed", "fault"),
    [
        (PAIR, (ARM64, AMD64), "is listed for linux/arm64, and is for linux/amd64"),
        ((PAIR[0], PAIR[0]), (AMD64, AMD64), "two images are for linux/amd64"),
        ((PAIR[1],), (ARM64,), "it has no image for linux/amd64"),
        (
            (PAIR[0], unlabelled(ARM64, "cu130-torch212-arm64")),
            (AMD64, ARM64),
            "not one row of the matrix",
        ),
        (
            (PAIR[0], unlabelled(ARM64, "cu130-torch211")),
            (AMD64, ARM64),
            "not one row of the matrix",
        ),
        ((PAIR[0], unlabelled(ARM64, "x")), (AMD64, ARM64), "they are called cu130-torch211, x"),
    ],
)
def test_what_contradicts_an_index(
    images: tuple[PublishedImage, ...], listed: tuple[str, ...], fault: str
) -> None:
    entries = [
        replace(one.manifest.descriptor, platform=platform)
        for one, platform in zip(images, listed, strict=True)
    ]
    found = verification.check_index(distribution.index(entries), images)
    assert found.status is Status.FAIL and fault in found.reason


# --- how tags compare them ------------------------------------------------------------------------------------------


def version(platform: str, hours: int = 0, torch: str = "2.11.0") -> ImageVersion:
    created = NOW + timedelta(hours=hours)
    return ImageVersion(name="", torch=torch, created=created, platform=platform)


def both(amd64: int, arm64: int, torch: str = "2.11.0") -> list[ImageVersion]:
    return [version(AMD64, amd64, torch), version(ARM64, arm64, torch)]


@pytest.mark.parametrize(
    ("old", "new", "follows"),
    [
        (both(1, 1), both(2, 1), True),
        (both(1, 5), both(2, 5), True),
        (both(2, 1), both(1, 9), False),
        (both(1, 2), both(9, 1), False),
        (both(1, 1, "2.12.0"), both(9, 9), False),
        ([version(AMD64, 1)], both(1, 0), True),
        ([version(AMD64, 2)], both(1, 9), False),
        (both(1, 9), [version(AMD64, 2)], True),
        ([version(ARM64, 2)], [version(AMD64, 1)], False),
    ],
)
def test_no_image_of_an_index_goes_back(
    old: list[ImageVersion], new: list[ImageVersion], follows: bool
) -> None:
    assert (find_step_back(old, new) is None) is follows
