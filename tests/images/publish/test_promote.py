"""Promotion within a registry of the test's own: what the other repository has already counts, and stays."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from images.errors import UserError
from images.publish import statements
from images.publish.attachments import PublishedImage, signatures_tag
from images.publish.gate import ReleasePolicy
from images.publish.promote import copy, promote
from images.publish.release import PublishResult
from images.publish.statements import TEST_RESULT
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Reference, Repository
from tests.support.attested import NAME
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import CLAIMS, GPU_PIP, attach, days_ago, published, validated
from validate.claims import Tier


@dataclass
class Site:
    """Two repositories of a registry, the first with an image that passed every tier."""

    staging: Registry
    production: Registry
    image: PublishedImage

    def promote(self, *gate: Tier) -> PublishResult:
        policy = ReleasePolicy(
            gate=gate,
            alias_gate=(Tier.STATIC, Tier.GPU),
            aliases_of=lambda _name: ("latest",),
            claims_of=lambda _labels: CLAIMS,
        )
        reference = Reference(self.staging.repository, self.image.manifest.digest)
        return promote(reference, self.production.repository, policy)

    def fail_there(self) -> None:
        """The image is in production, and a GPU machine finds that it fails; it tells nobody else."""
        copy(self.staging, self.production, self.image.manifest)
        self.production.put(self.image.manifest, "judged")
        failed = statements.test_result([validated(self.image.image_id, days_ago(0), [GPU_PIP], version="25")], CLAIMS)
        attach(self.production, "judged", TEST_RESULT, failed)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as server:
        server.answer = BlobRegistry().answer
        staging, production = (Repository(server.host, name) for name in ("staging", "production"))
        with Registry(staging) as source, Registry(production, mount_from=[staging]) as target:
            yield Site(source, target, published(source, "one", date=days_ago(1)))


def test_what_was_promoted_is_named_in_its_new_repository(site: Site) -> None:
    done = site.promote(Tier.STATIC, Tier.GPU)
    assert done.reference == f"{site.production.repository}@{site.image.manifest.digest}"
    assert {NAME, "latest"} < set(done.tags)


def test_what_the_gate_refuses_is_not_copied(site: Site) -> None:
    with pytest.raises(UserError, match="the cpu tier was not judged"):
        site.promote(Tier.STATIC, Tier.CPU)
    assert site.production.find(site.image.manifest.digest) is None


def test_what_failed_in_the_other_repository_alone_is_not_promoted(site: Site) -> None:
    site.fail_there()
    with pytest.raises(UserError, match=r"/production@sha256:\w+: S1 pip-on-gpu \(gpu\) is FAIL"):
        site.promote(Tier.STATIC, Tier.GPU)
    assert site.production.find(NAME) is None


def test_aliases_do_not_follow_to_what_failed_in_the_other_repository(site: Site) -> None:
    site.fail_there()
    done = site.promote(Tier.STATIC)
    assert NAME in done.tags and "latest" not in done.tags
    assert "latest stays: S1 pip-on-gpu (gpu) is FAIL" in done.unmoved_aliases[0]


def test_what_others_signed_in_the_other_repository_stays(site: Site) -> None:
    at = signatures_tag(site.image.manifest.digest)
    for place, content in ((site.staging, b"ours"), (site.production, b"theirs")):
        for blob in (b"{}", content):
            place.put_blob(blob)
        signature = Descriptor.of("application/vnd.dev.cosign.simplesigning.v1+json", content)
        place.put(image_manifest(Descriptor.of(OCI_CONFIG, b"{}"), [signature]), at)
    site.promote(Tier.STATIC)
    assert [site.production.blob(one) for one in site.production.get(at).layers] == [b"theirs", b"ours"]
