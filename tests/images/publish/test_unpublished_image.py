"""What a publication with a key counts, copies and signs, in a registry of the test's own. cosign is pretended."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from images.apptainer.runtime import image_info
from images.config.names import ImageName
from images.errors import Problem, UserError
from images.host.hashing import oci_digest
from images.publish import attachments, attestation, publication, sbom, signing
from images.publish.attachments import ATTESTATION, PROVENANCE, SBOM, PublishedImage
from images.publish.attestation import Attestation
from images.publish.compression import Compression
from images.publish.policy import ReleasePolicy
from images.publish.publication import PublishResult
from images.publish.sbom import Packages
from images.publish.statements import attest
from images.publish.unpublished_image import PublishOptions, UnpublishedImage
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.reference import Repository
from tests.support.attested import NAME, PIP
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import CLAIMS, FOUND, GPU_PIP, LABELS, attested_files, days_ago
from validate.claims import Claim, Tier

KEY, DAY = "cosign.key", days_ago(1)
CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-11-21T02:20:00Z",
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "1" * 64]},
        "config": {"Labels": {f"dev.truetag.{key}": value for key, value in LABELS.items()}},
    }
).encode()
INFO = image_info("", oci_digest(CONFIG), json.loads(CONFIG))


@dataclass
class Cosign:
    """What was signed: image and key -> digests of attachments."""

    signed: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def sign(self, image: str, key: str, found: Collection[str]) -> None:
        self.signed[image, key] = self.signed.get((image, key), frozenset()) | frozenset(found)

    def signed_attachments(self, image: str, key: str) -> frozenset[str]:
        if (image, key) not in self.signed:
            raise UserError(Problem(where=image, cause="no signatures found"), code=1)
        return self.signed[image, key]


@pytest.fixture
def cosign(monkeypatch: pytest.MonkeyPatch) -> Cosign:
    found = Cosign()
    for name, stand_in in {
        "require": lambda _key: None,
        "public_file": nullcontext,
        "sign": found.sign,
        "signed_attachments": found.signed_attachments,
    }.items():
        monkeypatch.setattr(signing, name, stand_in)
    monkeypatch.setattr(attest, "attest", lambda *_: ())
    return found


class OneLayer:
    """An image's content: some bytes for each compression."""

    def push(self, target: Registry, wanted: Sequence[Compression]) -> Sequence[tuple[Compression, Manifest]]:
        return [(one, stored(target, one)) for one in wanted]

    def packages(self) -> Packages:
        return sbom.packages_of(FOUND)


def stored(target: Registry, compression: Compression) -> Manifest:
    content = str(compression).encode()
    for blob in (CONFIG, content):
        target.put_blob(blob)
    layer = Descriptor.of(compression.media_type, content)
    target.put(manifest := image_manifest(Descriptor.of(OCI_CONFIG, CONFIG), [layer]))
    return manifest


@dataclass
class Site:
    """A repository, and what `publish` says. `built`: the folder of the machine that built the image."""

    target: Registry
    built: Path
    says: list[str] = field(default_factory=list)

    def publish(self, *claims: Claim, key: str = KEY, folder: Path | None = None, zstd: bool = False) -> PublishResult:
        """With a trial of these claims; `folder`: of another machine, which has no build.json."""
        policy = ReleasePolicy(
            gate=(Tier.STATIC,),
            alias_gate=(Tier.STATIC, Tier.GPU),
            aliases_of=lambda _name: ("latest",),
            claims_of=lambda _labels: CLAIMS,
        )
        options = PublishOptions(
            name=ImageName.parse(NAME),
            repository=self.target.repository,
            attestation=folder or self.built,
            policy=policy,
            locks={},
            cache=self.built / "cache",
            compressions=(Compression.GZIP, Compression.ZSTD) if zstd else (Compression.GZIP,),
            key=key,
        )
        image = UnpublishedImage(
            info=INFO, content=OneLayer(), attestation=trial(*claims), options=options, say=self.says.append
        )
        return publication.publish_images([image])

    def image(self, tag: str = NAME) -> PublishedImage:
        return attachments.load(self.target, self.target.get(tag))

    def attach_forged(self, manifest: Manifest) -> None:
        """What anybody who may push can attach: a verdict of a GPU that nobody has, and an SBOM of nothing."""
        attachments.attach_attestation(self.target, manifest, trial(GPU_PIP))
        attachments.attach_sbom(self.target, manifest, b'{"components": []}')


def trial(*claims: Claim) -> Attestation:
    return attestation.read(*attested_files(INFO.id, DAY, claims=claims), "a trial")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    record = {"digest": INFO.id, "base": {"reference": "x", "origin": "made"}, "engine": {"version": "28"}}
    (tmp_path / "build.json").write_text(json.dumps(record))
    registry = BlobRegistry()
    with serving() as server, Registry(Repository(server.host, "images")) as target:
        server.answer = registry.answer
        yield Site(target, tmp_path)


def counted(image: PublishedImage, by: Cosign) -> list[int]:
    """How many attestations, SBOMs and provenances of an image are signed."""
    signed = by.signed[image.reference, KEY]
    return [len([one for one in image.of(kind) if one.digest in signed]) for kind in (ATTESTATION, SBOM, PROVENANCE)]


def test_what_others_attached_is_neither_counted_nor_copied_nor_signed(site: Site, cosign: Cosign) -> None:
    site.publish(PIP)
    site.attach_forged(site.target.get(NAME))
    done = site.publish(PIP, zstd=True)
    assert "latest stays: the gpu tier was not judged" in done.unmoved_aliases and "latest" not in done.tags
    assert any("2 attachments count for nothing: --key did not sign them" in text for text in site.says)
    gzip, zstd = site.image(), site.image(f"{NAME}-zstd")
    assert counted(gzip, cosign) == counted(zstd, cosign) == [1, 1, 1]
    assert [len(one.attachments) for one in (gzip, zstd)] == [5, 3]


def test_what_was_attached_before_the_image_was_pushed_keeps_nothing_of_ours_away(site: Site, cosign: Cosign) -> None:
    """Its digest is known to who has the image; a forged SBOM stood in place of ours."""
    site.attach_forged(stored(site.target, Compression.GZIP))
    assert NAME in site.publish(PIP).tags
    assert counted(site.image(), cosign) == [1, 1, 1]


def test_another_machine_adds_its_tier_with_the_key(site: Site, cosign: Cosign, tmp_path: Path) -> None:
    """Provenance and SBOM are there and signed: it needs no build.json."""
    site.publish(PIP)
    done = site.publish(GPU_PIP, folder=tmp_path / "gpu")
    assert "latest" in done.tags and counted(site.image(), cosign) == [2, 1, 1]


@pytest.mark.parametrize("key", ["", "other.key"])
def test_a_tier_that_was_added_without_the_key_opens_nothing_for_it(site: Site, cosign: Cosign, key: str) -> None:
    site.publish(PIP)
    assert "latest" in site.publish(PIP, GPU_PIP, key=key).tags
    done = site.publish(PIP)
    assert "latest stays: the gpu tier was not judged" in done.unmoved_aliases
    assert counted(site.image(), cosign) == [1, 1, 1]


def test_a_failure_to_ask_cosign_is_no_missing_signature(
    site: Site, cosign: Cosign, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish(PIP)

    def broken(_image: str, _key: str) -> frozenset[str]:
        raise signing.CosignError(Problem(where="x", cause="connection refused"), code=1)

    monkeypatch.setattr(signing, "signed_attachments", broken)
    with pytest.raises(signing.CosignError, match="connection refused"):
        site.publish(PIP)
