"""What a publication with a key counts, copies and signs, in a registry of the test's own."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from images.config.names import ImageName
from images.engine import Engine, runtime
from images.engine.exported import ImagePart
from images.errors import UserError
from images.host.hashing import oci_digest
from images.publish import attachments, sbom
from images.publish import publish as release
from images.publish.attachments import PublishedImage
from images.publish.compression import MEDIA_TYPE
from images.publish.gate import ReleasePolicy
from images.publish.publish import LocalImage, PublishOptions
from images.publish.push import push
from images.publish.release import PublishResult
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Attestation
from images.publish.verify import verify
from images.registry.client import Registry
from images.registry.distribution import Descriptor, Manifest, image_manifest, index
from images.registry.reference import Reference, Repository
from tests.support.attested import DIGEST, NAME, PIP, evidence, judged
from tests.support.blob_registry import BlobRegistry
from tests.support.engine_contents import image_info
from tests.support.http_server import serving
from tests.support.published import (
    CLAIMS,
    FOUND,
    GPU_PIP,
    LABELS,
    attach,
    days_ago,
    pretend_cosign,
    published,
    result_of,
    validated,
)
from validate.claims import Claim, Tier
from validate.judging import Status

KEY, DAY = "cosign.key", days_ago(1)
LAYER = b"a tar"
OWN, FOREIGN = gzip.compress(LAYER, mtime=0), gzip.compress(b"a tar with a setuid shell", mtime=0)
CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-11-21T02:20:00Z",
        "rootfs": {"type": "layers", "diff_ids": [oci_digest(LAYER)]},
        "config": {"Labels": {f"dev.truetag.{key}": value for key, value in LABELS.items()}},
    }
).encode()
INFO = runtime.image_info(
    {
        "Id": oci_digest(CONFIG),
        "Size": 0,
        "RootFS": {"Layers": json.loads(CONFIG)["rootfs"]["diff_ids"]},
        "Config": json.loads(CONFIG)["config"],
    }
)
POLICY = ReleasePolicy(
    gate=(Tier.STATIC,),
    alias_gate=(Tier.STATIC, Tier.GPU),
    aliases_of=lambda _name: ("latest",),
    claims_of=lambda _labels, _run: CLAIMS,
)


class Layers:
    """An engine in the little that a push asks of it."""

    def parts(self, *_: object) -> Iterator[ImagePart]:
        for content in (CONFIG, LAYER):
            yield ImagePart(digest=oci_digest(content), size=len(content), chunks=iter([content]))


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretended: packages that a container lists, and cosign."""
    monkeypatch.setattr(sbom, "read_packages", lambda *_: FOUND)
    pretend_cosign(monkeypatch)


@dataclass
class Site:
    """A repository, and what `publish` says. `built`: the folder of the machine that built the image."""

    registry: BlobRegistry
    target: Registry
    built: Path
    says: list[str] = field(default_factory=list)

    def publish(
        self,
        *claims: Claim,
        key: str = KEY,
        folder: Path | None = None,
        cache: Path | None = None,
        day: str = DAY,
    ) -> PublishResult:
        """With a validation run of these claims; `folder`: of another machine, which has no build.json."""
        options = PublishOptions(
            repository=self.target.repository,
            policy=POLICY,
            cache=(cache or self.built) / "cache",
            key=key,
        )
        run, folder = validated(INFO.id, day, claims), folder or self.built
        image = LocalImage(name=ImageName.parse(NAME), info=INFO, run=run, folder=folder)
        return release.publish(cast("Engine", Layers()), image, options, say=self.says.append)

    def push(self) -> Manifest:
        """The image alone, as anybody can who has it."""
        return push(cast("Engine", Layers()), INFO, self.target, self.built / "cache")[0]

    def image(self, tag: str = NAME) -> PublishedImage:
        return attachments.load(self.target, self.target.get(tag))

    def attach_forged(self, manifest: Manifest) -> None:
        """What anybody who may push can attach: a verdict of a GPU that nobody has, and an SBOM of nothing."""
        self.target.put(manifest, "forged")
        attach(self.target, "forged", TEST_RESULT, result_of([trial(GPU_PIP)]))
        attach(self.target, "forged", CYCLONEDX, {"components": []})

    def signed(self, tag: str = NAME) -> list[int]:
        """How many validation runs, SBOMs and provenances of an image the key signed."""
        found = attachments.drop_untrusted(self.image(tag), KEY)
        return [
            len(found.attestations),
            len(found.statements_of(CYCLONEDX)),
            len(found.statements_of(PROVENANCE)),
        ]


def trial(*claims: Claim) -> Attestation:
    return validated(INFO.id, DAY, claims)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    record = {
        "digest": INFO.id,
        "base": {"reference": "x", "origin": "made"},
        "engine": {"version": "28"},
    }
    (tmp_path / "build.json").write_text(json.dumps(record))
    registry = BlobRegistry()
    with serving() as server, Registry(Repository(server.host, "images")) as target:
        server.answer = registry.answer
        yield Site(registry, target, tmp_path)


def test_a_second_time_nothing_is_sent_or_signed(site: Site) -> None:
    done = site.publish(PIP)
    received, manifests = site.registry.received, dict(site.registry.manifests)
    assert site.publish(PIP) == done
    assert (site.registry.received, site.registry.manifests) == (received, manifests)


def test_what_others_attached_is_neither_counted_nor_copied_nor_signed(site: Site) -> None:
    site.publish(PIP)
    site.attach_forged(site.target.get(NAME))
    done = site.publish(PIP)
    assert (
        "latest stays: the gpu tier was not judged" in done.unmoved_aliases
        and "latest" not in done.tags
    )
    assert any(
        "2 attachments count for nothing: --key did not sign them" in text for text in site.says
    )
    assert site.signed() == [1, 1, 1] and len(site.image().statements) == 5


def test_what_was_attached_before_the_image_was_pushed_keeps_nothing_of_ours_away(
    site: Site,
) -> None:
    """Its digest is known to who has the image; a forged SBOM stood in place of ours."""
    site.attach_forged(site.push())
    assert NAME in site.publish(PIP).tags
    assert site.signed() == [1, 1, 1]


def test_another_machine_adds_its_tier_with_the_key(site: Site, tmp_path: Path) -> None:
    """Provenance and SBOM are there and signed: it needs no build.json."""
    site.publish(PIP)
    done = site.publish(GPU_PIP, folder=tmp_path / "gpu")
    assert "latest" in done.tags and site.signed() == [2, 1, 1]
    site.publish(PIP)
    assert site.signed() == [2, 1, 1]


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ((GPU_PIP,), "the static tier was not judged"),
        (
            (replace(PIP, subject="torch"),),
            "fewer claims than matrix.yaml today: it lacks pins/pip",
        ),
        (
            (replace(PIP, expect={**PIP.expect, "locals": ["", "+cpu"]}),),
            "other expectations than today's .locals.",
        ),
    ],
)
def test_where_the_gate_is_closed_nothing_is_stored(
    site: Site, claims: tuple[Claim, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        site.publish(*claims)
    assert not site.registry.blobs["images"] and not site.registry.manifests


@pytest.mark.parametrize("key", ["", "other.key"])
def test_a_tier_that_was_added_without_the_key_opens_nothing_for_it(site: Site, key: str) -> None:
    site.publish(PIP)
    assert "latest" in site.publish(PIP, GPU_PIP, key=key).tags
    done = site.publish(PIP)
    assert "latest stays: the gpu tier was not judged" in done.unmoved_aliases
    assert site.signed() == [1, 1, 1]


def test_what_failed_by_the_claims_of_its_day_is_refused_with_that_cause(site: Site) -> None:
    """Today's matrix asks no longer; a test result by today's claims would leave the failure out."""
    with pytest.raises(
        UserError, match=r"pins/torch.*failed by the claims that it was measured for"
    ) as told:
        site.publish(PIP, replace(PIP, subject="torch", expect={**PIP.expect, "version": "2"}))
    assert "validate" in told.value.problems[0].then and not site.registry.manifests


def test_a_run_that_is_attached_keeps_a_failure_that_today_asks_no_longer_and_blocks_nothing(
    site: Site,
) -> None:
    site.publish(PIP)
    torch = replace(PIP, subject="torch", expect={**PIP.expect, "version": "2"})
    attach(
        site.target,
        NAME,
        TEST_RESULT,
        result_of([trial(PIP, torch)], replace(CLAIMS, claims=(PIP, torch))),
        KEY,
    )
    assert NAME in site.publish(PIP, GPU_PIP).tags
    (result,) = [
        one.predicate
        for one in site.image().statements_of(TEST_RESULT)
        if len(one.predicate["configuration"]) > 2
    ]
    assert (
        result["failedTests"] == ["static/pins/torch"]
        and "gpu/pins/pip-on-gpu" in result["passedTests"]
    )


def test_a_tag_that_was_set_back_by_hand_is_approved_by_a_publication_that_changes_nothing_else(
    site: Site,
) -> None:
    site.publish(PIP)
    newer = published(site.target, "newer", date=days_ago(0), key=KEY, created=days_ago(-1))
    attachments.sign_image(site.target, newer.manifest.digest, KEY, KEY, [NAME])
    reference = Reference(site.target.repository, NAME)

    def approved() -> bool:
        found = verify(reference, POLICY, key=KEY)[1]
        return next(one for one in found if one.subject == "tag").status is Status.PASS

    assert not approved(), "the key signed the newer one for it last"
    site.publish(PIP)
    assert approved()
    manifests = dict(site.registry.manifests)
    site.publish(PIP)
    assert site.registry.manifests == manifests, "and signs once"


def test_labels_that_lie_attach_nothing_and_move_no_tag(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbom, "make_sbom", lambda *_, **__: {"components": []})
    with pytest.raises(UserError, match=r"pip 26\.3 is labelled, the SBOM has none"):
        site.publish(PIP)
    assert site.target.find(NAME) is None
    assert site.target.find(attachments.attached_tag(site.push().digest, "att")) is None


# --- what others put under the dated tag ----------------------------------------------------------------------------


def layer(content: bytes) -> Descriptor:
    return Descriptor.of(MEDIA_TYPE, content)


@pytest.mark.parametrize(
    "layers",
    [
        [layer(OWN), layer(FOREIGN)],
        [],
        [layer(FOREIGN)],
        [layer(OWN + FOREIGN)],
        [layer(b"no gzip")],
        [Descriptor.of("text/plain", OWN)],
    ],
    ids=["one more", "none", "another", "the same and more", "not compressed", "of another type"],
)
@pytest.mark.parametrize("machine", ["the same", "another"])
def test_no_manifest_with_a_foreign_layer_is_signed(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: list[Descriptor],
    machine: str,
) -> None:
    dated, own = site.publish(PIP, key="").tags[0], site.image().manifest
    for content in (FOREIGN, OWN, OWN + FOREIGN, b"no gzip"):
        site.target.put_blob(content)
    foreign = image_manifest(own.config, layers, site.image().created)
    site.target.put(foreign, dated)
    with (
        monkeypatch.context() as cosign
    ):  # as `cosign sign` does, and versions did that read no layers
        cosign.setattr(attachments, "_COUNTER", "none")
        attachments.sign_image(site.target, foreign.digest, KEY, KEY, [NAME])
    with pytest.raises(UserError, match="names other layers than those of the image"):
        site.publish(PIP, cache=site.built if machine == "the same" else tmp_path / "other")
    assert len([tag for tag in site.registry.manifests if str(tag).endswith(".sig")]) == 1


def test_what_another_machine_pushed_is_compared_before_it_is_signed(
    site: Site, tmp_path: Path
) -> None:
    site.publish(PIP, key="")
    site.publish(PIP, cache=tmp_path / "other")
    assert site.signed() == [1, 1, 1]


# --- the dated tag ---------------------------------------------------------------------------------------------------


def test_a_dated_tag_that_names_another_image_is_refused(site: Site) -> None:
    (dated, *_) = site.publish(PIP).tags
    other = published(site.target, "another", date=DAY)
    site.target.put(other.manifest, dated)
    with pytest.raises(
        UserError, match=f"{dated}: is {other.image_id[:19]}, not the image that was validated"
    ):
        site.publish(PIP)
    site.target.put(index([]), dated)
    with pytest.raises(UserError, match="is an index"):
        site.publish(PIP)


def test_an_image_keeps_the_date_of_its_first_publication(site: Site) -> None:
    """It has the same ID whenever it is built: a validation run of another day adds its evidence to it."""
    first = site.publish(PIP, day="2026-11-21T10:00:00Z")
    later = site.publish(
        PIP, GPU_PIP, day="2026-11-23T10:00:00Z", folder=site.built.parent / "elsewhere"
    )
    tag = f"{NAME}-20261121-{INFO.id[7:19]}"
    assert (
        tag in first.tags
        and tag in later.tags
        and not [one for one in later.tags if "-20261123-" in one]
    )
    assert site.image().manifest.digest == site.image(tag).manifest.digest
    assert site.image().created == "2026-11-21T10:00:00Z" and len(site.image().attestations) == 2


@pytest.mark.parametrize("date", ["2999-11-21T10:00:00Z", "2026-11-23T10:00:00Z"])
def test_a_date_that_somebody_wrote_under_the_dated_tag_is_not_taken_over(
    site: Site, date: str
) -> None:
    own = site.push()
    site.target.put(
        image_manifest(own.config, own.layers, date), f"{NAME}-20261121-{INFO.id[7:19]}"
    )
    assert site.publish(PIP, day="2026-11-22T10:00:00Z").tags
    assert site.image().created == "2026-11-22T10:00:00Z"


@pytest.mark.parametrize(
    ("name", "image_id", "words"),
    [
        (NAME, "sha256:" + "1" * 64, f"is the attestation of {NAME} sha256:abab"),
        ("cu128-torch28", DIGEST, "the image is cu128-torch28"),
    ],
)
def test_the_run_of_another_image_is_refused(
    tmp_path: Path, name: str, image_id: str, words: str
) -> None:
    def read(name: str, image_id: str) -> LocalImage:
        engine = cast("Engine", SimpleNamespace(inspect=lambda _: image_info(id=image_id)))
        return release.read_local_image(engine, "x", ImageName.parse(name), tmp_path)

    with pytest.raises(UserError, match="there is no attestation"):
        read(name, image_id)
    (tmp_path / "evidence.json").write_text(evidence(PIP).dumps())
    assert read(NAME, DIGEST).run.verdict == judged(PIP)
    with pytest.raises(UserError, match=words):
        read(name, image_id)
