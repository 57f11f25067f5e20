"""Promotion, and the tags of a row of two platforms, in a registry of the test's own. Images of some bytes."""

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

ROW = ("cu130-torch211", "cu130-torch211-arm64")
AMD64, ARM64 = ROW
STATIC, WHOLE = (Tier.STATIC,), (Tier.STATIC, Tier.GPU)
POLICY = ReleasePolicy(
    gate=STATIC,
    alias_gate=STATIC,
    aliases_of=lambda name: ("latest",) if name == AMD64 else (),
    claims_of=lambda _labels, run: run.claim_set,
    row_of=lambda _name: ROW,
)


def image(place: Registry, name: str, hour: int, tiers: int = 2) -> PublishedImage:
    created, claims = f"2026-11-21T{hour:02}:00:00Z", CLAIMS.claims[:tiers]
    return published(
        place, f"{name}-{hour}", date=days_ago(1), claims=claims, name=name, created=created
    )


@dataclass
class Site:
    """Two repositories of a registry."""

    registry: BlobRegistry
    staging: Registry
    production: Registry

    def promote(
        self, name: str, hour: int, alias_gate: tuple[Tier, ...] = STATIC, *, tiers: int = 2
    ) -> PublishResult:
        """An image that was built at an hour. `tiers` that were judged: 1 is static alone, 2 is gpu, too."""
        return self.go_on(image(self.staging, name, hour, tiers).manifest.digest, alias_gate)

    def go_on(
        self, digest: str, alias_gate: tuple[Tier, ...] = STATIC, *, drop_platforms: bool = False
    ) -> PublishResult:
        reference = Reference(self.staging.repository, digest)
        policy = replace(POLICY, alias_gate=alias_gate)
        return promote(reference, self.production.repository, policy, drop_platforms=drop_platforms)

    def publish(
        self,
        name: str,
        hour: int,
        gate: tuple[Tier, ...] = STATIC,
        *,
        tiers: int = 2,
        drop_platforms: bool = False,
    ) -> PublishResult:
        """The same, as `publish` does it."""
        stored = image(self.production, name, hour, tiers)
        policy = replace(POLICY, gate=gate, alias_gate=gate, aliases_of=lambda _name: ())
        site = Release(
            target=self.production, policy=policy, row=ROW, drop_platforms=drop_platforms
        )
        site.require_follows([tags.version_of(stored)])
        return site.move([stored], *site.plan([stored]))

    def named(self, tag: str) -> str | None:
        found = self.production.find(tag)
        return found.digest if found else None

    def listed(self, tag: str = AMD64) -> dict[str, str]:
        """Platform -> digest, of the index that a tag names."""
        return {one.platform: one.digest for one in self.production.get(tag).manifests}


def digest(result: PublishResult) -> str:
    return result.images[0].reference.partition("@")[2]


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as server:
        registry = BlobRegistry()
        server.answer = registry.answer
        staging, production = (Repository(server.host, name) for name in ("staging", "production"))
        with Registry(staging) as source, Registry(production) as target:
            yield Site(registry, source, target)


def test_images_join_one_by_one_and_neither_goes_back(site: Site) -> None:
    arm = site.promote(ARM64, 5)
    assert not arm.indexes and arm.left_out == (
        f"{AMD64} lacks linux/amd64: {AMD64} is not published here",
    )
    assert site.named(AMD64) is None
    first = site.promote(AMD64, 3)
    assert site.listed() == {"linux/amd64": digest(first), "linux/arm64": digest(arm)}
    with pytest.raises(UserError, match=r"is of 2026-11-21 03:00, this of 2026-11-21 02:00"):
        site.promote(AMD64, 2)  # newer than no part, though older than the index's newest
    newer = site.promote(ARM64, 6)
    assert site.listed("latest") == {"linux/amd64": digest(first), "linux/arm64": digest(newer)}
    assert site.named(ARM64) == digest(newer)


def test_an_image_that_failed_since_is_left_out_and_aliases_lose_no_platform(site: Site) -> None:
    arm, amd = site.promote(ARM64, 1), site.promote(AMD64, 1)
    before = site.named("latest")
    failed = validated(
        site.production.get(digest(arm)).config.digest, days_ago(0), name=ARM64, version="25"
    )
    attach(site.production, digest(arm), TEST_RESULT, result_of([failed]))
    _, found = verify(Reference(site.production.repository, "latest"), POLICY, unsigned=True)
    assert [check.subject for check in found if check.status is Status.FAIL][
        -1
    ] == "linux/arm64 gate static"
    with pytest.raises(UserError, match="is FAIL"):
        promote(Reference(site.production.repository, AMD64), site.staging.repository, POLICY)
    done = site.promote(AMD64, 2)
    assert done.left_out[0].startswith(f"{AMD64} lacks linux/arm64: pins/pip (static) is FAIL")
    assert site.listed() == {"linux/amd64": digest(done)} != {"linux/amd64": digest(amd)}
    assert site.named("latest") == before
    assert done.unmoved_aliases == (
        "latest stays: it has an image for linux/arm64, and this has none",
    )


def test_an_index_of_fewer_platforms_is_promoted_only_where_that_is_asked_for(site: Site) -> None:
    arm, amd = site.promote(ARM64, 1), site.promote(AMD64, 1)
    newer = image(site.staging, AMD64, 2)
    alone = attachments.make_index([newer])
    site.staging.put(alone)
    with pytest.raises(
        UserError, match="it has an image for linux/arm64, and this has none"
    ) as refused:
        site.go_on(alone.digest)
    assert "--drop-platforms" in str(refused.value)
    assert site.listed() == {"linux/amd64": digest(amd), "linux/arm64": digest(arm)}
    site.go_on(alone.digest, drop_platforms=True)
    assert site.listed() == {"linux/amd64": newer.manifest.digest}


def test_aliases_name_what_passed_the_whole_gate(site: Site) -> None:
    amd, arm = site.promote(AMD64, 1, WHOLE), site.promote(ARM64, 1, WHOLE, tiers=1)
    assert site.listed() == {"linux/amd64": digest(amd), "linux/arm64": digest(arm)}
    assert site.listed("latest") == {"linux/amd64": digest(amd)}
    assert arm.left_out == ("latest lacks linux/arm64: the gpu tier was not judged",)


def test_no_alias_follows_to_a_fault_that_plain_training_meets(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LABELS, "torch", "2.13.0")
    monkeypatch.setitem(LABELS, "silent-faults", "pytorch#144643 pytorch#196678")
    assert (
        "latest stays: silently wrong: gradients of cuDNN"
        in site.promote(AMD64, 1).unmoved_aliases[0]
    )
    monkeypatch.setitem(LABELS, "silent-faults", "pytorch#144643")
    assert not site.promote(AMD64, 2).unmoved_aliases


def test_an_index_that_somebody_else_put_together_is_not_promoted(site: Site) -> None:
    arm = image(site.staging, ARM64, 1)
    site.staging.put(
        distribution.index([replace(arm.manifest.descriptor, platform="linux/amd64")]), "other"
    )
    _, (found, *_) = verify(Reference(site.staging.repository, "other"), POLICY, unsigned=True)
    assert found.status is Status.FAIL and "listed for linux/amd64" in found.reason
    with pytest.raises(UserError, match="is listed for linux/amd64, and is for linux/arm64"):
        site.go_on("other")
    pair = attachments.make_index([arm, image(site.staging, AMD64, 1)])
    site.staging.put(distribution.index(pair.manifests[::-1]), "turned")
    with pytest.raises(UserError, match="is no index as `publish` writes it"):
        site.go_on("turned")


def test_a_name_loses_no_platform_unless_that_is_asked_for(site: Site) -> None:
    site.publish(ARM64, 1, tiers=1)
    site.publish(AMD64, 1)
    before = site.listed()
    assert set(before) == {"linux/amd64", "linux/arm64"}
    why = r"it has an image for linux/arm64, and this has none: the gpu tier was not judged\n +next: publish that image"
    with pytest.raises(UserError, match=why):
        site.publish(AMD64, 2, WHOLE)
    assert site.listed() == before
    done = site.publish(AMD64, 2, WHOLE, drop_platforms=True)
    assert set(site.listed()) == {"linux/amd64"}
    assert done.left_out == (f"{AMD64} lacks linux/arm64: the gpu tier was not judged",)


def test_a_name_that_stays_as_it_was_is_not_said_to_lack_what_it_has(site: Site) -> None:
    site.publish(AMD64, 1, tiers=1)
    before = site.listed()
    done = site.publish(ARM64, 1, WHOLE)
    assert site.listed() == before and not done.indexes
    (told,) = done.left_out
    assert (
        told
        == f"{AMD64} stays as it was: no index goes without linux/amd64: the gpu tier was not judged"
    )


@dataclass
class Passed:
    """An image that passed every tier, on the way to production."""

    site: Site
    image: PublishedImage

    def promote(self, *gate: Tier) -> PublishResult:
        policy = replace(
            POLICY,
            gate=gate,
            alias_gate=WHOLE,
            aliases_of=lambda _name: ("latest",),
            claims_of=lambda _labels, _run: CLAIMS,
            row_of=lambda name: (name,),
        )
        reference = Reference(self.site.staging.repository, self.image.manifest.digest)
        return promote(reference, self.site.production.repository, policy)

    def fail_there(self) -> None:
        """The image is in production, and a GPU machine finds that it fails; it tells nobody else."""
        with Registry(
            self.site.production.repository, mount_from=[self.site.staging.repository]
        ) as target:
            copy_image(self.site.staging, target, self.image.manifest)
        failed = result_of([validated(self.image.image_id, days_ago(0), [GPU_PIP], version="25")])
        attach(self.site.production, self.image.manifest.digest, TEST_RESULT, failed)


@pytest.fixture
def passed(site: Site) -> Passed:
    return Passed(site, published(site.staging, "one", date=days_ago(1)))


def test_what_was_promoted_is_named_in_its_new_repository(passed: Passed) -> None:
    received = passed.site.registry.received
    done = passed.promote(*WHOLE)
    assert passed.site.registry.received == received, "nothing is sent"
    assert (
        done.images[0].reference
        == f"{passed.site.production.repository}@{passed.image.manifest.digest}"
    )
    assert {NAME, "latest"} < set(done.tags)


def test_what_the_gate_refuses_is_not_copied(passed: Passed) -> None:
    with pytest.raises(UserError, match="the cpu tier was not judged"):
        passed.promote(Tier.STATIC, Tier.CPU)
    assert passed.site.named(passed.image.manifest.digest) is None


@pytest.mark.parametrize("gate", [WHOLE, STATIC])
def test_what_failed_in_the_other_repository_alone_is_promoted_by_no_gate(
    passed: Passed, gate: tuple[Tier, ...]
) -> None:
    passed.fail_there()
    with pytest.raises(UserError, match=r"/production@sha256:\w+: pins/pip-on-gpu \(gpu\) is FAIL"):
        passed.promote(*gate)
    assert passed.site.named(NAME) is None


def test_what_others_signed_in_the_other_repository_stays(passed: Passed) -> None:
    at, site = attachments.attached_tag(passed.image.manifest.digest, "sig"), passed.site
    for place, content in ((site.staging, b"ours"), (site.production, b"theirs")):
        for blob in (b"{}", content):
            place.put_blob(blob)
        signature = Descriptor.of("application/vnd.dev.cosign.simplesigning.v1+json", content)
        place.put(image_manifest(Descriptor.of(OCI_CONFIG, b"{}"), [signature]), at)
    passed.promote(Tier.STATIC)
    assert [site.production.blob(one) for one in site.production.get(at).layers] == [
        b"theirs",
        b"ours",
    ]
