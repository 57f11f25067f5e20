"""Promotion, and the tags of a row of two platforms, in a registry of the test's own.

A row's first name is also that of its index. The images are some bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from images.errors import UserError
from images.publish import attachments, tags
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.release import PublishResult, Release, copy_image, promote
from images.publish.statements import TEST_RESULT
from images.publish.verify import verify
from images.registry import distribution
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Reference, Repository
from tests.support.attested import NAME
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import (
    CLAIMS,
    GPU_PIP,
    LABELS,
    attach,
    days_ago,
    published,
    result_of,
    validated,
)
from validate.claims import Tier
from validate.judging import Status

AMD64_NAME, ARM64_NAME = "cu130-torch211", "cu130-torch211-arm64"
ROW = (AMD64_NAME, ARM64_NAME)
STATIC, STATIC_AND_GPU = (Tier.STATIC,), (Tier.STATIC, Tier.GPU)
POLICY = ReleasePolicy(
    gate=STATIC,
    alias_gate=STATIC,
    aliases_of=lambda name: ("latest",) if name == AMD64_NAME else (),
    claims_of=lambda _labels, run: run.claim_set,
    row_of=lambda _name: ROW,
)


def stored_image(
    repository: Registry, name: str, hour: int, tiers: tuple[Tier, ...] = STATIC_AND_GPU
) -> PublishedImage:
    """Store an image that was built at an hour of a day, and validated in some tiers."""
    claims = [claim for claim in CLAIMS.claims if claim.tier in tiers]
    return published(
        repository,
        f"{name}-{hour}",
        date=days_ago(1),
        claims=claims,
        name=name,
        created=f"2026-11-21T{hour:02}:00:00Z",
    )


@dataclass
class Repositories:
    """Two repositories of a registry."""

    registry: BlobRegistry
    staging: Registry
    production: Registry

    def promote(
        self,
        name: str,
        hour: int,
        *,
        alias_gate: tuple[Tier, ...] = STATIC,
        tiers: tuple[Tier, ...] = STATIC_AND_GPU,
    ) -> PublishResult:
        """Promote an image that was built at an hour, and validated in some tiers."""
        image = stored_image(self.staging, name, hour, tiers)
        return self.promote_stored(image.manifest.digest, alias_gate=alias_gate)

    def promote_stored(
        self,
        identifier: str,
        *,
        alias_gate: tuple[Tier, ...] = STATIC,
        drop_platforms: bool = False,
    ) -> PublishResult:
        """Promote what a tag or digest names in staging."""
        reference = Reference(self.staging.repository, identifier)
        policy = replace(POLICY, alias_gate=alias_gate)
        return promote(reference, self.production.repository, policy, drop_platforms=drop_platforms)

    def publish(
        self,
        name: str,
        hour: int,
        *,
        gate: tuple[Tier, ...] = STATIC,
        tiers: tuple[Tier, ...] = STATIC_AND_GPU,
        drop_platforms: bool = False,
    ) -> PublishResult:
        """Move the tags of an image in production, as `publish` does. It has no aliases."""
        image = stored_image(self.production, name, hour, tiers)
        policy = replace(POLICY, gate=gate, alias_gate=gate, aliases_of=lambda _name: ())
        release = Release(
            target=self.production, policy=policy, row=ROW, drop_platforms=drop_platforms
        )
        release.require_follows([tags.version_of(image)])
        changes, left_out = release.plan([image])
        return release.move([image], changes, left_out)

    def digest_in_production(self, tag: str) -> str | None:
        """What a tag names in production; None if there is no such tag."""
        manifest = self.production.find(tag)
        return manifest.digest if manifest else None

    def index_in_production(self, tag: str = AMD64_NAME) -> dict[str, str]:
        """Platform -> digest, of the index that a tag names in production."""
        return {entry.platform: entry.digest for entry in self.production.get(tag).manifests}


def digest_of(result: PublishResult) -> str:
    """The digest of the image that was published or promoted."""
    return result.images[0].manifest.digest


@pytest.fixture
def repositories() -> Iterator[Repositories]:
    with serving() as server:
        registry = BlobRegistry()
        server.answer = registry.answer
        staging = Repository(server.host, "staging")
        production = Repository(server.host, "production")
        with Registry(staging) as source, Registry(production) as target:
            yield Repositories(registry, source, target)


# --- images of a row join their index -------------------------------------------------------------


def test_there_is_no_index_without_an_image_for_linux_amd64(repositories: Repositories) -> None:
    result = repositories.promote(ARM64_NAME, 5)

    assert not result.indexes
    assert result.left_out == (
        f"{AMD64_NAME} lacks linux/amd64: {AMD64_NAME} is not published here",
    )
    assert repositories.digest_in_production(AMD64_NAME) is None


def test_images_join_their_index_one_by_one(repositories: Repositories) -> None:
    arm64 = repositories.promote(ARM64_NAME, 5)

    amd64 = repositories.promote(AMD64_NAME, 3)
    assert repositories.index_in_production() == {
        "linux/amd64": digest_of(amd64),
        "linux/arm64": digest_of(arm64),
    }

    newer_arm64 = repositories.promote(ARM64_NAME, 6)
    assert repositories.index_in_production("latest") == {
        "linux/amd64": digest_of(amd64),
        "linux/arm64": digest_of(newer_arm64),
    }
    assert repositories.digest_in_production(ARM64_NAME) == digest_of(newer_arm64)


def test_no_image_of_an_index_goes_back(repositories: Repositories) -> None:
    """Each platform is compared by itself: the image for arm64 has another date."""
    repositories.promote(ARM64_NAME, 5)
    repositories.promote(AMD64_NAME, 3)

    with pytest.raises(
        UserError, match=r"names an image of 2026-11-21 03:00, and the one to be published is older"
    ):
        repositories.promote(AMD64_NAME, 2)


def test_aliases_name_only_the_images_that_open_their_gate(repositories: Repositories) -> None:
    amd64 = repositories.promote(AMD64_NAME, 1, alias_gate=STATIC_AND_GPU)

    arm64 = repositories.promote(ARM64_NAME, 1, alias_gate=STATIC_AND_GPU, tiers=STATIC)

    assert repositories.index_in_production() == {
        "linux/amd64": digest_of(amd64),
        "linux/arm64": digest_of(arm64),
    }
    assert repositories.index_in_production("latest") == {"linux/amd64": digest_of(amd64)}
    assert arm64.left_out == ("latest lacks linux/arm64: the gpu tier was not judged",)


@pytest.mark.parametrize(
    ("faults", "unmoved_tags"),
    [
        pytest.param(
            "pytorch#144643 pytorch#196678",
            ["latest stays: silently wrong: gradients of cuDNN"],
            id="one that ordinary training meets",
        ),
        pytest.param("pytorch#144643", [], id="only one that it does not meet"),
    ],
)
def test_no_alias_names_an_image_with_a_silent_fault_that_ordinary_training_meets(
    repositories: Repositories,
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    unmoved_tags: list[str],
) -> None:
    monkeypatch.setitem(LABELS, "torch", "2.13.0")
    monkeypatch.setitem(LABELS, "silent-faults", faults)

    result = repositories.promote(AMD64_NAME, 1)

    assert len(result.unmoved_tags) == len(unmoved_tags)
    for sentence, beginning in zip(result.unmoved_tags, unmoved_tags, strict=True):
        assert beginning in sentence


# --- platforms that an index would lose -----------------------------------------------------------


def fail_in_production(repositories: Repositories, result: PublishResult, name: str) -> None:
    """Attach a run that failed to an image in production."""
    image = result.images[0]
    failed_run = validated(image.image_id, days_ago(0), name=name, version="25")
    attach(repositories.production, digest_of(result), TEST_RESULT, result_of([failed_run]))


def test_an_index_with_an_image_that_failed_since_is_not_promoted(
    repositories: Repositories,
) -> None:
    arm64 = repositories.promote(ARM64_NAME, 1)
    repositories.promote(AMD64_NAME, 1)

    fail_in_production(repositories, arm64, ARM64_NAME)

    latest = Reference(repositories.production.repository, "latest")
    _digest, checks = verify(latest, POLICY, unsigned=True)
    failed = [check.subject for check in checks if check.status is Status.FAIL]
    assert failed[-1] == "linux/arm64 gate static"
    with pytest.raises(UserError, match="is FAIL"):
        promote(
            Reference(repositories.production.repository, AMD64_NAME),
            repositories.staging.repository,
            POLICY,
        )


def test_an_image_that_failed_since_is_left_out_of_the_next_index(
    repositories: Repositories,
) -> None:
    arm64 = repositories.promote(ARM64_NAME, 1)
    older_amd64 = repositories.promote(AMD64_NAME, 1)
    alias_before = repositories.digest_in_production("latest")
    fail_in_production(repositories, arm64, ARM64_NAME)

    newer_amd64 = repositories.promote(AMD64_NAME, 2)

    assert newer_amd64.left_out[0].startswith(
        f"{AMD64_NAME} lacks linux/arm64: pins/pip (static) is FAIL"
    )
    assert digest_of(newer_amd64) != digest_of(older_amd64)
    assert repositories.index_in_production() == {"linux/amd64": digest_of(newer_amd64)}
    assert repositories.digest_in_production("latest") == alias_before
    assert newer_amd64.unmoved_tags == (
        "latest stays: latest has an image for linux/arm64, and what is to be published has none",
    )


def test_an_index_of_fewer_platforms_is_promoted_only_where_that_is_asked_for(
    repositories: Repositories,
) -> None:
    arm64, amd64 = repositories.promote(ARM64_NAME, 1), repositories.promote(AMD64_NAME, 1)
    newer = stored_image(repositories.staging, AMD64_NAME, 2)
    index_without_arm64 = attachments.make_index([newer])
    repositories.staging.put(index_without_arm64)

    cause = "has an image for linux/arm64, and what is to be published has none"
    with pytest.raises(UserError, match=cause) as error:
        repositories.promote_stored(index_without_arm64.digest)
    assert "--drop-platforms" in str(error.value)
    assert repositories.index_in_production() == {
        "linux/amd64": digest_of(amd64),
        "linux/arm64": digest_of(arm64),
    }

    repositories.promote_stored(index_without_arm64.digest, drop_platforms=True)
    assert repositories.index_in_production() == {"linux/amd64": newer.manifest.digest}


def test_a_published_name_loses_a_platform_only_where_that_is_asked_for(
    repositories: Repositories,
) -> None:
    repositories.publish(ARM64_NAME, 1, tiers=STATIC)
    repositories.publish(AMD64_NAME, 1)
    index_before = repositories.index_in_production()
    assert set(index_before) == {"linux/amd64", "linux/arm64"}

    cause = (
        r"linux/arm64, and what is to be published has none: the gpu tier was not judged\n"
        r" +next: publish the images of these platforms first"
    )
    with pytest.raises(UserError, match=cause):
        repositories.publish(AMD64_NAME, 2, gate=STATIC_AND_GPU)
    assert repositories.index_in_production() == index_before

    result = repositories.publish(AMD64_NAME, 2, gate=STATIC_AND_GPU, drop_platforms=True)
    assert set(repositories.index_in_production()) == {"linux/amd64"}
    assert result.left_out == (f"{AMD64_NAME} lacks linux/arm64: the gpu tier was not judged",)


def test_an_index_that_stays_as_it_was_is_not_said_to_lack_what_it_has(
    repositories: Repositories,
) -> None:
    repositories.publish(AMD64_NAME, 1, tiers=STATIC)
    index_before = repositories.index_in_production()

    result = repositories.publish(ARM64_NAME, 1, gate=STATIC_AND_GPU)

    assert repositories.index_in_production() == index_before
    assert not result.indexes
    assert result.left_out == (
        f"{AMD64_NAME} stays as it was: no index goes without linux/amd64: "
        "the gpu tier was not judged",
    )


# --- indexes of others ----------------------------------------------------------------------------


def test_an_index_that_lists_an_image_for_another_platform_is_not_promoted(
    repositories: Repositories,
) -> None:
    arm64 = stored_image(repositories.staging, ARM64_NAME, 1)
    wrong_entry = replace(arm64.manifest.descriptor, platform="linux/amd64")
    repositories.staging.put(distribution.index([wrong_entry]), "wrong")

    reference = Reference(repositories.staging.repository, "wrong")
    _digest, (index_check, *_others) = verify(reference, POLICY, unsigned=True)
    assert index_check.status is Status.FAIL
    assert "for linux/amd64, and that image is for linux/arm64" in index_check.reason
    with pytest.raises(UserError, match="for linux/amd64, and that image is for linux/arm64"):
        repositories.promote_stored("wrong")


def test_an_index_in_another_order_than_publish_writes_is_not_promoted(
    repositories: Repositories,
) -> None:
    arm64 = stored_image(repositories.staging, ARM64_NAME, 1)
    amd64 = stored_image(repositories.staging, AMD64_NAME, 1)
    entries = attachments.make_index([arm64, amd64]).manifests
    repositories.staging.put(distribution.index(entries[::-1]), "turned")

    with pytest.raises(UserError, match="something else than `publish` wrote this index") as error:
        repositories.promote_stored("turned")

    # The step names the images of the index, so that it can be given as it stands.
    (problem,) = error.value.problems
    assert AMD64_NAME in problem.then and ARM64_NAME in problem.then


# --- single images --------------------------------------------------------------------------------


@dataclass
class StagedImage:
    """An image in staging that passed every tier, and has no other platform."""

    repositories: Repositories
    image: PublishedImage

    def promote(self, *gate: Tier) -> PublishResult:
        policy = replace(
            POLICY,
            gate=gate,
            alias_gate=STATIC_AND_GPU,
            aliases_of=lambda _name: ("latest",),
            claims_of=lambda _labels, _run: CLAIMS,
            row_of=lambda name: (name,),
        )
        staged = Reference(self.repositories.staging.repository, self.image.manifest.digest)
        return promote(staged, self.repositories.production.repository, policy)

    def copy_and_fail_in_production(self) -> None:
        """Copy the image to production, where a GPU machine finds that it fails."""
        production, staging = self.repositories.production, self.repositories.staging
        with Registry(production.repository, mount_from=[staging.repository]) as target:
            copy_image(staging, target, self.image.manifest)
        failed_run = validated(self.image.image_id, days_ago(0), [GPU_PIP], version="25")
        attach(production, self.image.manifest.digest, TEST_RESULT, result_of([failed_run]))


@pytest.fixture
def staged(repositories: Repositories) -> StagedImage:
    return StagedImage(repositories, published(repositories.staging, "one", date=days_ago(1)))


def test_a_promotion_sends_nothing_and_moves_the_tags(staged: StagedImage) -> None:
    received = staged.repositories.registry.received

    result = staged.promote(*STATIC_AND_GPU)

    assert staged.repositories.registry.received == received
    production = staged.repositories.production.repository
    assert result.images[0].reference == f"{production}@{staged.image.manifest.digest}"
    assert {NAME, "latest"} < set(result.tags)


def test_what_the_gate_refuses_is_not_copied(staged: StagedImage) -> None:
    with pytest.raises(UserError, match="the cpu tier was not judged"):
        staged.promote(Tier.STATIC, Tier.CPU)

    assert staged.repositories.digest_in_production(staged.image.manifest.digest) is None


@pytest.mark.parametrize("gate", [STATIC_AND_GPU, STATIC], ids=["static and gpu", "static"])
def test_no_gate_promotes_an_image_that_failed_in_production_only(
    staged: StagedImage, gate: tuple[Tier, ...]
) -> None:
    staged.copy_and_fail_in_production()

    with pytest.raises(UserError, match=r"/production@sha256:\w+: pins/pip-on-gpu \(gpu\) is FAIL"):
        staged.promote(*gate)

    assert staged.repositories.digest_in_production(NAME) is None


def test_signatures_of_others_in_production_stay(staged: StagedImage) -> None:
    tag = attachments.attached_tag(staged.image.manifest.digest, "sig")
    staging, production = staged.repositories.staging, staged.repositories.production
    for repository, content in ((staging, b"ours"), (production, b"theirs")):
        put_signature(repository, tag, content)

    staged.promote(Tier.STATIC)

    contents = [production.blob(layer) for layer in production.get(tag).layers]
    assert contents == [b"theirs", b"ours"]


def put_signature(repository: Registry, tag: str, content: bytes) -> None:
    """Store some bytes as a signature that cosign made."""
    config = b"{}"
    repository.put_blob(config)
    repository.put_blob(content)
    layer = Descriptor.of("application/vnd.dev.cosign.simplesigning.v1+json", content)
    repository.put(image_manifest(Descriptor.of(OCI_CONFIG, config), [layer]), tag)
