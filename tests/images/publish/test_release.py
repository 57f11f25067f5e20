"""Which platforms the name of a row keeps, in a registry of the test's own. Images of some bytes, one a platform."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from images.errors import UserError
from images.publish import release, tags
from images.publish.compression import Compression
from images.publish.gate import ReleasePolicy
from images.publish.release import PublishResult, Release
from images.registry.client import Registry
from images.registry.reference import Repository
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import CLAIMS, days_ago, published
from validate.claims import Tier

ROW = ("cu130-torch211", "cu130-torch211-arm64")
AMD64, ARM64 = ROW
STATIC, WHOLE = (Tier.STATIC,), (Tier.STATIC, Tier.GPU)


@dataclass
class Site:
    target: Registry

    def publish(
        self, name: str, hour: int, gate: tuple[Tier, ...] = STATIC, *, tiers: int = 2, keeps: str = "say otherwise"
    ) -> PublishResult:
        """An image that was built at an hour. `tiers` that were judged: 1 is static alone, 2 is gpu, too."""
        created, judged = f"2026-11-21T{hour:02}:00:00Z", CLAIMS.claims[:tiers]
        image = published(self.target, f"{name}-{hour}", date=days_ago(1), claims=judged, name=name, created=created)
        policy = ReleasePolicy(
            gate=gate,
            alias_gate=gate,
            aliases_of=lambda _name: (),
            claims_of=lambda _labels: None,
            row_of=lambda _name: ROW,
        )
        release = Release(target=self.target, policy=policy, row=ROW, keeps=keeps)
        release.require_follows([tags.version_of(image)])
        return release.move(release.plan([("", image)]), signed=False)

    def listed(self) -> dict[str, str]:
        """Platform -> digest, of the index that the name of the row names."""
        return {one.platform: one.digest for one in self.target.get(AMD64).manifests}


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as server:
        server.answer = BlobRegistry().answer
        with Registry(Repository(server.host, "images")) as target:
            yield Site(target)


def test_a_name_loses_no_platform_unless_that_is_asked_for(site: Site) -> None:
    site.publish(ARM64, 1, tiers=1)
    site.publish(AMD64, 1)
    before = site.listed()
    assert set(before) == {"linux/amd64", "linux/arm64"}
    why = r"it has an image for linux/arm64, and this has none: the gpu tier was not judged\n +next: say otherwise"
    with pytest.raises(UserError, match=why):
        site.publish(AMD64, 2, WHOLE)
    assert site.listed() == before
    done = site.publish(AMD64, 2, WHOLE, keeps="")
    assert set(site.listed()) == {"linux/amd64"}
    assert done.left_out == (
        f"{AMD64} lacks linux/arm64: the gpu tier was not judged",
        f"{AMD64} had an image for linux/arm64, and has none now",
    )


@pytest.mark.parametrize(
    ("plain", "how"),
    [
        (Compression.GZIP, "moves them too"),
        (Compression.ZSTD, "moves them with the next build"),
    ],
)
def test_tags_of_an_older_builds_other_variants_are_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, plain: Compression, how: str
) -> None:
    site.publish(AMD64, 1)
    site.target.put(site.target.get(AMD64), f"{AMD64}-zstd")
    monkeypatch.setattr(release, "compression_of", lambda _manifest: plain)
    done = site.publish(AMD64, 2)
    told = f"{AMD64}-zstd and its like stay on an older build: --compression all {how}"
    assert done.unmoved_aliases == (told,)


def test_a_name_that_stays_as_it_was_is_not_said_to_lack_what_it_has(site: Site) -> None:
    site.publish(AMD64, 1, tiers=1)
    before = site.listed()
    done = site.publish(ARM64, 1, WHOLE)
    assert site.listed() == before and not done.indexes
    (told,) = done.left_out
    assert told == f"{AMD64} stays as it was: no index goes without linux/amd64: the gpu tier was not judged"
