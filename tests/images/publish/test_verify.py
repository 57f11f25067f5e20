"""What `verify` says of tags, statements and indexes, and which tags a promotion moves.

cosign is a fake: the signature of a key is its name (`pretend_cosign`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from images.errors import UserError, wrong
from images.publish import attachments, statements
from images.publish import verify as verification
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.release import promote
from images.publish.statements import (
    CYCLONEDX,
    ORIGIN_EXCEPTION,
    PROVENANCE,
    TEST_RESULT,
    Statement,
)
from images.publish.tags import ImageVersion, find_step_back, immutable_tag, version_of
from images.publish.verify import Check, verify
from images.registry import distribution
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Reference, Repository
from tests.support.attested import NAME, PIP
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import (
    CLAIMS,
    attach,
    days_ago,
    pretend_cosign,
    published,
    result_of,
    validated,
)
from validate.claims import ORIGIN_PROBE, ClaimSet, Tier
from validate.evidence import Evidence
from validate.judging import Status

KEY, OTHER_KEY = "cosign.key", "other.key"
OTHER_NAME = "cu128-torch28"
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
    without_matrix=True,
)
WITH_AND_WITHOUT_MATRIX = pytest.mark.parametrize(
    "policy", [POLICY, NO_MATRIX], ids=["with a matrix", "without a matrix"]
)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A repository in a registry of the test's own."""
    pretend_cosign(monkeypatch)
    with serving() as server, Registry(Repository(server.host, "images")) as registry:
        server.answer = BlobRegistry().answer
        yield registry


def image_with_signed_tags(
    target: Registry, content: str, *tags: str, name: str = NAME, key: str = KEY
) -> PublishedImage:
    """Publish an image that a key signed for some tags, which name it then."""
    image = published(target, content, date=days_ago(1), key=key, name=name)
    sign(target, image, *tags, key=key)
    for tag in tags:
        target.put(image.manifest, tag)
    return image


def sign(target: Registry, image: PublishedImage, *tags: str, key: str = KEY) -> None:
    attachments.sign_image(target, image.manifest.digest, key, key, tags)


def check_of(
    subject: str, target: Registry, tag: str, policy: ReleasePolicy = POLICY, key: str = KEY
) -> Check:
    """The first check by `verify` whose subject begins so."""
    reference = Reference(target.repository, tag)
    _digest, checks = verify(reference, policy, key=key, unsigned=not key)
    return next(check for check in checks if check.subject.startswith(subject))


def tag_fault(target: Registry, tag: str, policy: ReleasePolicy = POLICY, key: str = KEY) -> str:
    """Why the check of a tag fails; empty if it does not."""
    check = check_of("tag", target, tag, policy, key)
    return check.reason if check.status is Status.FAIL else ""


# --- tags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [NAME, "latest"])
def test_a_name_or_alias_that_the_key_signed_passes(target: Registry, tag: str) -> None:
    image_with_signed_tags(target, "one", NAME, "latest")

    assert tag_fault(target, tag) == ""


def test_the_dated_tag_of_another_build_fails_though_the_key_signed_it(
    target: Registry,
) -> None:
    dated_tag_of_another_build = f"{NAME}-20261121-000000000000"
    image_with_signed_tags(target, "one", dated_tag_of_another_build)

    assert "whose tags are" in tag_fault(target, dated_tag_of_another_build)


def test_a_reference_by_digest_has_no_check_of_a_tag(target: Registry) -> None:
    image = image_with_signed_tags(target, "one", NAME)
    by_digest = Reference(target.repository, image.manifest.digest)

    _digest, checks = verify(by_digest, POLICY, key=KEY)

    assert "tag" not in [check.subject for check in checks]


@pytest.mark.parametrize("key", [KEY, ""], ids=["with a key", "without a key"])
def test_an_image_under_the_tag_of_another_one_fails_with_both_names(
    target: Registry, key: str
) -> None:
    image = image_with_signed_tags(target, "one", NAME, "latest")
    other = image_with_signed_tags(target, "other", OTHER_NAME, name=OTHER_NAME)

    target.put(image.manifest, OTHER_NAME)
    target.put(other.manifest, "latest")

    short_digest = image.manifest.digest[:19]
    fault_of_name = tag_fault(target, OTHER_NAME, key=key)
    assert fault_of_name.startswith(f"{OTHER_NAME} names {NAME} ({short_digest}), whose tags are")
    assert tag_fault(target, "latest", key=key).startswith(f"latest names {OTHER_NAME} (")


def publish_old_and_new(
    target: Registry, monkeypatch: pytest.MonkeyPatch
) -> tuple[PublishedImage, PublishedImage]:
    """Publish two builds, one after the other, from machines whose clocks differ by far."""
    times = iter([1 << 61])
    monkeypatch.setattr(attachments.time, "time_ns", lambda: next(times, 1))
    old = image_with_signed_tags(target, "old", NAME, "latest")
    new = image_with_signed_tags(target, "new", NAME, "latest")
    return old, new


@WITH_AND_WITHOUT_MATRIX
@pytest.mark.parametrize("tag", [NAME, "latest"])
def test_a_tag_that_was_moved_back_to_an_older_signed_build_fails_with_both_digests(
    target: Registry, policy: ReleasePolicy, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = publish_old_and_new(target, monkeypatch)
    assert tag_fault(target, tag, policy) == ""

    target.put(old.manifest, tag)

    old_digest, new_digest = old.manifest.digest[:19], new.manifest.digest[:19]
    assert tag_fault(target, tag, policy).startswith(
        f"the tag {tag} names {old_digest}, but the key last signed that it shall name {new_digest}"
    )


def test_without_a_key_nobody_knows_that_a_tag_was_moved_back(
    target: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _new = publish_old_and_new(target, monkeypatch)

    target.put(old.manifest, NAME)

    assert tag_fault(target, NAME, key="") == ""


@WITH_AND_WITHOUT_MATRIX
def test_a_tag_that_was_moved_back_passes_once_the_key_signed_it_again(
    target: Registry, policy: ReleasePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `publish` does if an index loses a platform and is the older one again."""
    old, _new = publish_old_and_new(target, monkeypatch)
    target.put(old.manifest, NAME)

    sign(target, old, NAME, "latest")

    assert tag_fault(target, NAME, policy) == ""


@WITH_AND_WITHOUT_MATRIX
def test_a_tag_that_only_another_key_signed_fails(target: Registry, policy: ReleasePolicy) -> None:
    image = image_with_signed_tags(target, "one", NAME)

    sign(target, image, "latest", key=OTHER_KEY)
    target.put(image.manifest, "latest")

    short_digest = image.manifest.digest[:19]
    assert tag_fault(target, "latest", policy) == (
        f"latest names {NAME} ({short_digest}), which the key did not sign for it"
    )


def test_what_another_key_signs_later_does_not_fail_a_tag(target: Registry) -> None:
    image_with_signed_tags(target, "one", NAME)
    other = image_with_signed_tags(target, "other", key=OTHER_KEY)

    sign(target, other, NAME, key=OTHER_KEY)

    assert tag_fault(target, NAME) == ""


@pytest.mark.parametrize(
    ("key", "status", "words"),
    [
        pytest.param(KEY, Status.PASS, "for which the key stands", id="with a key"),
        pytest.param("", Status.UNPROVEN, "no key stands for", id="without a key"),
    ],
)
def test_without_a_matrix_a_key_must_stand_for_the_claims(
    target: Registry, key: str, status: Status, words: str
) -> None:
    image_with_signed_tags(target, "one", NAME)

    check = check_of("gate", target, NAME, NO_MATRIX, key)

    assert check.status is status
    assert words in check.reason


def test_an_exception_is_named_only_as_long_as_the_image_needs_it(target: Registry) -> None:
    """Its layers may be recorded after it was published; its statements stay attached."""
    origin = replace(PIP, check="origin", subject="layers", probe=ORIGIN_PROBE, unproven="x")
    recorded_policy = replace(POLICY, claims_of=lambda _labels, run: CLAIMS)
    needing_policy = replace(
        POLICY, claims_of=lambda _labels, _run: replace(CLAIMS, claims=(*CLAIMS.claims, origin))
    )
    image = published(target, "one", date=days_ago(1))
    result = {**result_of(image.attestations), ORIGIN_EXCEPTION: "for a trial"}
    attach(target, "one", TEST_RESULT, result)

    needing = check_of("gate", target, "one", needing_policy, key="")
    recorded = check_of("gate", target, "one", recorded_policy, key="")

    assert needing.reason.endswith("UNPROVEN, by an exception: for a trial")
    assert recorded.status is needing.status is Status.PASS
    assert "exception" not in recorded.reason


@pytest.mark.parametrize("key", [KEY, ""], ids=["with a key", "without a key"])
def test_without_matrix_and_gate_a_tier_that_was_not_judged_fails_nothing(
    target: Registry, key: str
) -> None:
    """A stranger's matrix asks for static and cpu; our default gate asks for a GPU, too."""
    image_with_signed_tags(target, "one", NAME)
    assumed = replace(NO_MATRIX, gate=(Tier.STATIC, Tier.MULTIGPU), gate_is_assumed=True)

    check = check_of("gate", target, NAME, assumed, key)

    assert check.status is Status.UNPROVEN
    assert check.subject == "gate"
    assert "give --gate" in check.reason
    assert "--matrix" in check.reason

    # Who names the tiers gets a verdict on them.
    asked_for = replace(assumed, gate_is_assumed=False)
    assert check_of("gate", target, NAME, asked_for, key).status is Status.FAIL


def test_the_gate_of_an_image_of_another_matrix_is_unproven_with_a_next_step(
    target: Registry,
) -> None:
    image_with_signed_tags(target, "one", NAME)
    of_another_matrix = replace(POLICY, claims_of=lambda _labels, _run: None)

    check = check_of("gate", target, NAME, of_another_matrix)

    assert check.status is Status.UNPROVEN
    assert "makes no image with the labels of this one" in check.reason
    assert "--matrix" in check.reason


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"claims_of": lambda _labels, _run: None}, id="of another matrix"),
        pytest.param(
            {"gate_is_assumed": True, "without_matrix": True}, id="without matrix and gate"
        ),
    ],
)
def test_an_image_that_is_known_to_be_broken_fails_whatever_the_matrix(
    target: Registry, change: dict[str, Any]
) -> None:
    other_pip = replace(PIP, expect={**PIP.expect, "version": "26.2"})
    published(target, "one", date=days_ago(1), key=KEY, claims=(other_pip,))

    check = check_of("gate", target, "one", replace(POLICY, **change))

    assert check.status is Status.FAIL
    assert "pins/pip (static) is FAIL" in check.reason


def test_claims_of_today_that_cannot_be_made_leave_the_gate_unproven_with_the_next_step(
    target: Registry,
) -> None:
    def raise_error(_labels: Mapping[str, str], _run: Evidence) -> ClaimSet:
        raise wrong("locks/one", "it has no lock", "`nox -s lock -- one` makes it")

    image_with_signed_tags(target, "one", NAME)

    check = check_of("gate", target, NAME, replace(POLICY, claims_of=raise_error))

    assert check.status is Status.UNPROVEN
    assert check.reason == "it has no lock: `nox -s lock -- one` makes it"


# --- tags that a promotion moves ------------------------------------------------------------------


@pytest.fixture
def production(target: Registry) -> Iterator[Registry]:
    """Another repository of the same registry."""
    with Registry(Repository(target.repository.host, "production")) as registry:
        yield registry


def dated_tag_of(image: PublishedImage) -> str:
    return immutable_tag(image.name, version_of(image).created, image.image_id)


def test_a_promotion_is_refused_if_the_key_did_not_sign_a_tag_of_the_image(
    target: Registry, production: Registry
) -> None:
    image = published(target, "one", date=days_ago(1), key=KEY)
    sign(target, image, NAME)

    with pytest.raises(UserError) as error:
        promote(
            Reference(target.repository, image.manifest.digest),
            production.repository,
            POLICY,
            key=KEY,
        )

    (problem,) = error.value.problems
    assert problem.where == f"{production.repository}:{dated_tag_of(image)}"
    assert "the key did not sign" in problem.cause
    assert "publish" in problem.then
    assert "--key cosign.key" in problem.then
    assert production.find(NAME) is None


def test_a_promotion_leaves_an_alias_that_the_key_did_not_sign(
    target: Registry, production: Registry
) -> None:
    """Staging may leave an alias where it is; whoever promotes has only the public key."""
    image = published(target, "one", date=days_ago(1), key=KEY)
    by_digest = Reference(target.repository, image.manifest.digest)
    sign(target, image, NAME, dated_tag_of(image))

    result = promote(by_digest, production.repository, POLICY, key=KEY)

    assert set(result.tags) == {NAME, dated_tag_of(image)}
    (sentence,) = result.unmoved_tags
    assert sentence.startswith("latest stays: the key did not sign")
    assert not tag_fault(production, NAME)
    assert not tag_fault(production, dated_tag_of(image))

    sign(target, image, NAME, dated_tag_of(image), "latest")
    assert "latest" in promote(by_digest, production.repository, POLICY, key=KEY).tags
    assert not tag_fault(production, "latest")


def test_a_promotion_takes_no_tag_that_was_moved_back(
    target: Registry, production: Registry
) -> None:
    old, new = (published(target, content, date=days_ago(1), key=KEY) for content in ("old", "new"))
    for image in (old, new):
        sign(target, image, NAME, dated_tag_of(image))
    staged = Reference(target.repository, NAME)

    target.put(old.manifest, NAME)
    with pytest.raises(UserError, match=f"last signed .* {new.manifest.digest[:19]}"):
        promote(staged, production.repository, POLICY, key=KEY)

    target.put(new.manifest, NAME)
    assert NAME in promote(staged, production.repository, POLICY, key=KEY).tags
    assert production.get(NAME).digest == new.manifest.digest


def test_the_name_of_a_row_stays_if_its_index_was_put_together_in_production(
    target: Registry, production: Registry
) -> None:
    """Nobody signed that index. Each image is in production under its dated tag all the same."""
    row = ("cu130-torch211", "cu130-torch211-arm64")
    policy = replace(POLICY, row_of=lambda _name: row, claims_of=lambda _labels, run: run.claim_set)

    tags_by_name = {}
    unmoved = []
    for name in row:
        image = published(target, name, date=days_ago(1), key=KEY, name=name)
        sign(target, image, name, dated_tag_of(image))
        result = promote(Reference(target.repository, name), production.repository, policy, key=KEY)
        tags_by_name[name] = [tag.replace(dated_tag_of(image), "DATED") for tag in result.tags]
        unmoved += result.unmoved_tags

    assert set(tags_by_name[row[0]]) == {"DATED"}
    assert set(tags_by_name[row[1]]) == {"DATED", row[1]}
    assert production.find(row[0]) is None
    (sentence,) = [
        sentence for sentence in unmoved if sentence.startswith(f"{row[0]} stays: the key signed ")
    ]
    assert f"{target.repository}:{row[0]} --to" in sentence


# --- statements against the image -----------------------------------------------------------------


def image_with_statement(predicate_type: str, predicate: Any, digest: str = "") -> PublishedImage:
    """An image with a statement of each type: the given one, and plain ones of the other types.

    The test result has one validation run, SBOM and provenance are empty. `digest`: that of the
    image that the statements are about; by default this one.
    """
    labels = {"dev.truetag.image": NAME, "dev.truetag.pins": '{"pip":"26.3"}'}
    config = json.dumps({"config": {"Labels": labels}}).encode()
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [])
    run = validated(manifest.config.digest, days_ago(1), [PIP])
    predicates = {
        TEST_RESULT: statements.make_test_result([run]),
        CYCLONEDX: {},
        PROVENANCE: {},
        predicate_type: predicate,
    }
    attached = []
    for type_, content in predicates.items():
        statement = Statement.of(
            type_, content, repository="x.org/y", digest=digest or manifest.digest
        )
        attached.append(statement)
    return PublishedImage(
        repository=Repository("x.org", "y"),
        manifest=manifest,
        config=json.loads(config),
        statements=tuple(attached),
    )


def plain_image() -> PublishedImage:
    """An image with a true test result, and an empty SBOM and provenance."""
    return image_with_statement(CYCLONEDX, {})


def statement_check(image: PublishedImage, subject: str) -> Check:
    (check,) = [check for check in verification.check_statements(image) if check.subject == subject]
    return check


def fault_of(image: PublishedImage, subject: str) -> str:
    """Why the check of statements with this subject fails."""
    check = statement_check(image, subject)
    assert check.status is Status.FAIL
    return check.reason


def test_an_sbom_with_every_pin_of_the_label_passes() -> None:
    bom = {"components": [{"purl": "pkg:pypi/pip@26.3"}, {"purl": "pkg:pypi/more@1"}]}

    check = statement_check(image_with_statement(CYCLONEDX, bom), "SBOM")

    assert check.status is Status.PASS


def test_an_sbom_that_lacks_a_pin_of_the_label_fails() -> None:
    image = image_with_statement(CYCLONEDX, {})

    assert fault_of(image, "SBOM") == "the image's label names pip 26.3, and its SBOM has none"


@pytest.mark.parametrize(
    "predicate",
    [
        pytest.param("x", id="a text"),
        pytest.param(5, id="a number"),
        pytest.param({"components": 5, "buildDefinition": 5}, id="numbers as fields"),
        pytest.param({"components": ["x"], "buildDefinition": []}, id="lists of other things"),
    ],
)
@pytest.mark.parametrize("predicate_type", [CYCLONEDX, PROVENANCE], ids=["SBOM", "provenance"])
def test_a_statement_of_another_form_fails_whoever_attached_it(
    predicate_type: str, predicate: Any
) -> None:
    image = image_with_statement(predicate_type, predicate)

    assert "can't be read" in fault_of(image, statements.NAMES[predicate_type])
    with pytest.raises(UserError, match=r"cosign clean.*or publish with --key, so"):
        verification.require_sound(image)


def test_a_statement_about_another_image_fails() -> None:
    other_digest = "sha256:" + "0" * 64

    image = image_with_statement(CYCLONEDX, {}, other_digest)

    assert (
        fault_of(image, "attestation") == f"its test result is about another image ({other_digest})"
    )
    faults = verification.find_statement_faults(image, CYCLONEDX)
    assert faults[0].startswith(f"is of {other_digest}")


def test_a_test_result_that_says_more_than_its_evidence_fails() -> None:
    truth = plain_image().statements_of(TEST_RESULT)[0].predicate
    lie = {**truth, "passedTests": [*truth["passedTests"], "gpu/numerics/matmul"]}

    image = image_with_statement(TEST_RESULT, lie)

    assert fault_of(image, "attestation") == (
        "its test result is not what the evidence says: passedTests differ in gpu/numerics/matmul"
    )


def test_evidence_of_claims_with_numbers_fails_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = plain_image()
    older_files = []
    for evidence_file in image.statements_of(TEST_RESULT)[0].evidence:
        older_files.append(evidence_file.replace(b'"schema_version": 3', b'"schema_version": 2'))
    monkeypatch.setattr(Statement, "evidence", property(lambda _statement: older_files))

    fault = fault_of(image, "attestation")

    assert "schema version 2, in which claims had numbers" in fault
    assert "can't be converted: verify it with" in fault


@pytest.mark.parametrize(
    "predicate",
    [
        pytest.param({}, id="without evidence"),
        pytest.param({"configuration": 5}, id="a number as evidence"),
        pytest.param({"configuration": [{"content": "?"}]}, id="no base64"),
    ],
)
def test_a_test_result_that_cannot_be_read_fails(predicate: Any) -> None:
    image = image_with_statement(TEST_RESULT, predicate)

    assert "can't be read" in fault_of(image, "attestation")


@pytest.mark.parametrize("predicate", [None, "no object"], ids=["nothing", "a text"])
def test_a_test_result_that_is_no_object_fails_the_checks_of_statements_and_gate(
    predicate: Any,
) -> None:
    """Anybody who may push may attach one."""
    image = image_with_statement(TEST_RESULT, predicate)

    checks = verification.check_image(image, POLICY, key="", unsigned=True)

    reasons = {check.subject: check.reason for check in checks if check.status is Status.FAIL}
    assert list(reasons) == ["attestation", "gate static"]
    assert all("its test result can't be read" in reason for reason in reasons.values())


# --- indexes of images for several platforms ------------------------------------------------------

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
AMD64, ARM64 = "linux/amd64", "linux/arm64"
ROW = {AMD64: "cu130-torch211", ARM64: "cu130-torch211-arm64"}


def image_for(platform: str, name: str = "") -> PublishedImage:
    """An image for a platform; by default with its name in ROW."""
    labels = {"dev.truetag.image": name or ROW[platform]}
    system, _, architecture = platform.partition("/")
    config = {"os": system, "architecture": architecture, "config": {"Labels": labels}}
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, json.dumps(config).encode()), [])
    return PublishedImage(
        repository=Repository("x.org", "y"), manifest=manifest, config=config, statements=()
    )


ON_AMD64, ON_ARM64 = image_for(AMD64), image_for(ARM64)


def test_an_index_has_an_entry_for_each_platform_linux_amd64_first() -> None:
    made = attachments.make_index([ON_ARM64, ON_AMD64])

    expected_entries = []
    for architecture, image in (("amd64", ON_AMD64), ("arm64", ON_ARM64)):
        entry = {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": image.manifest.digest,
            "size": len(image.manifest.content),
            "platform": {"architecture": architecture, "os": "linux"},
        }
        expected_entries.append(entry)
    assert made.data["manifests"] == expected_entries
    assert [entry.platform for entry in made.manifests] == [AMD64, ARM64]
    assert verification.check_index(made, [ON_AMD64, ON_ARM64]).status is Status.PASS


def test_an_index_has_the_same_bytes_in_whatever_order_its_images_come() -> None:
    in_order = attachments.make_index([ON_AMD64, ON_ARM64])
    reversed_order = attachments.make_index([ON_ARM64, ON_AMD64])

    assert in_order.digest == reversed_order.digest


@pytest.mark.parametrize(
    ("images", "listed_platforms", "fault"),
    [
        pytest.param(
            [ON_AMD64, ON_ARM64],
            [ARM64, AMD64],
            "for linux/arm64, and that image is for linux/amd64",
            id="listed for each other's platform",
        ),
        pytest.param(
            [ON_AMD64, ON_AMD64],
            [AMD64, AMD64],
            "two images are for linux/amd64",
            id="two for one platform",
        ),
        pytest.param(
            [ON_ARM64], [ARM64], "the index has no image for linux/amd64", id="no linux/amd64"
        ),
        pytest.param(
            [ON_AMD64, image_for(ARM64, "cu130-torch212-arm64")],
            [AMD64, ARM64],
            "not one row of the matrix",
            id="of another torch",
        ),
        pytest.param(
            [ON_AMD64, image_for(ARM64, "cu130-torch211")],
            [AMD64, ARM64],
            "not one row of the matrix",
            id="a name for another platform",
        ),
        pytest.param(
            [ON_AMD64, image_for(ARM64, "x")],
            [AMD64, ARM64],
            "they are called cu130-torch211, x",
            id="a name that cannot be read",
        ),
    ],
)
def test_an_index_that_its_images_contradict_fails(
    images: list[PublishedImage], listed_platforms: list[str], fault: str
) -> None:
    entries = []
    for image, platform in zip(images, listed_platforms, strict=True):
        entries.append(replace(image.manifest.descriptor, platform=platform))

    check = verification.check_index(distribution.index(entries), images)

    assert check.status is Status.FAIL
    assert fault in check.reason


# --- how tags compare indexes ---------------------------------------------------------------------


def version(platform: str, hours: int, torch: str = "2.11.0") -> ImageVersion:
    """The version of an image that was validated some hours from NOW."""
    created = NOW + timedelta(hours=hours)
    return ImageVersion(name="", torch=torch, created=created, platform=platform)


def index_of(amd64: int, arm64: int, torch: str = "2.11.0") -> list[ImageVersion]:
    """The versions of an index: the hour of each platform's image."""
    return [version(AMD64, amd64, torch), version(ARM64, arm64, torch)]


@pytest.mark.parametrize(
    ("old", "new", "follows"),
    [
        pytest.param(index_of(1, 1), index_of(2, 1), True, id="one is newer"),
        pytest.param(index_of(1, 5), index_of(2, 5), True, id="the newest of all is in both"),
        pytest.param(index_of(2, 1), index_of(1, 9), False, id="amd64 is older"),
        pytest.param(index_of(1, 2), index_of(9, 1), False, id="arm64 is older"),
        pytest.param(
            index_of(1, 1, "2.12.0"), index_of(9, 9), False, id="newer, but of an older torch"
        ),
        pytest.param([version(AMD64, 1)], index_of(1, 0), True, id="a platform is new"),
        pytest.param(
            [version(AMD64, 2)], index_of(1, 9), False, id="a platform is new, amd64 is older"
        ),
        pytest.param(index_of(1, 9), [version(AMD64, 2)], True, id="a platform is gone"),
        pytest.param(
            [version(ARM64, 2)], [version(AMD64, 1)], False, id="another platform, and older"
        ),
    ],
)
def test_no_image_of_an_index_is_replaced_by_an_older_one(
    old: list[ImageVersion], new: list[ImageVersion], follows: bool
) -> None:
    step_back = find_step_back(old, new)

    assert (step_back is None) is follows
