"""What a publication with a key counts, copies and signs, in a registry of the test's own."""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from images.config.names import ImageName
from images.engine import Engine, Stopped, runtime
from images.engine.exported import ImagePart
from images.engine.identity import ImageIdentity
from images.errors import Problem, UserError
from images.host.hashing import oci_digest
from images.publish import attachments, sbom
from images.publish import publish as release
from images.publish.attachments import PublishedImage
from images.publish.compression import MEDIA_TYPE
from images.publish.gate import ReleasePolicy
from images.publish.publish import LocalImage, PublishOptions
from images.publish.push import push
from images.publish.release import PublishResult, promote
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
    GPU_PIP,
    LABELS,
    PACKAGES,
    attach,
    days_ago,
    pretend_cosign,
    published,
    result_of,
    validated,
)
from validate.claims import Claim, Tier
from validate.judging import Status

KEY = "cosign.key"
YESTERDAY = days_ago(1)
LAYER = b"a tar"
OWN_BLOB = gzip.compress(LAYER, mtime=0)
FOREIGN_BLOB = gzip.compress(b"a tar with a setuid shell", mtime=0)
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
    },
    ImageIdentity(configuration=oci_digest(CONFIG), platform="linux/amd64"),
)
SHORT_ID = INFO.digest[7:19]
"""The digits of the image ID that a dated tag has."""
POLICY = ReleasePolicy(
    gate=(Tier.STATIC,),
    alias_gate=(Tier.STATIC, Tier.GPU),
    aliases_of=lambda _name: ("latest",),
    claims_of=lambda _labels, _run: CLAIMS,
)


class EngineWithImage:
    """An engine in the little that a push asks of it."""

    def parts(self, *_: object) -> Iterator[ImagePart]:
        for content in (CONFIG, LAYER):
            yield ImagePart(digest=oci_digest(content), chunks=iter([content]))


@pytest.fixture(autouse=True)
def without_containers_and_cosign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbom, "read_packages", lambda *_: PACKAGES)
    pretend_cosign(monkeypatch)


@dataclass
class Publisher:
    """A user who publishes one image to a repository of the test's own registry."""

    registry: BlobRegistry
    target: Registry
    build_folder: Path
    """The output folder of `build`, with build.json, on the machine that built the image."""
    messages: list[str] = field(default_factory=list)

    def publish(
        self,
        *claims: Claim,
        key: str = KEY,
        folder: Path | None = None,
        cache: Path | None = None,
        day: str = YESTERDAY,
    ) -> PublishResult:
        """Publish the image with a validation run of these claims, measured on a day.

        `folder`: that of another machine, without a build.json. `cache`: another machine's.
        """
        options = PublishOptions(
            repository=self.target.repository,
            policy=POLICY,
            cache=(cache or self.build_folder) / "cache",
            key=key,
        )
        image = LocalImage(
            name=ImageName.parse(NAME),
            info=INFO,
            run=validated(INFO.digest, day, claims),
            folder=folder or self.build_folder,
        )
        engine = cast("Engine", EngineWithImage())
        return release.publish(engine, image, options, say=self.messages.append)

    def push(self) -> Manifest:
        """Push the image without attachments, as anybody can who has it."""
        engine = cast("Engine", EngineWithImage())
        manifest, _sent = push(engine, INFO, self.target, self.build_folder / "cache")
        return manifest

    def published_image(self, tag: str = NAME) -> PublishedImage:
        return attachments.load(self.target, self.target.get(tag))

    def attach_forged_statements(self, manifest: Manifest) -> None:
        """Attach what anybody may who may push: a verdict on a GPU, and an SBOM of nothing."""
        self.target.put(manifest, "forged")
        attach(self.target, "forged", TEST_RESULT, result_of([run_of(GPU_PIP)]))
        attach(self.target, "forged", CYCLONEDX, {"components": []})

    def signed_statements(self) -> dict[str, int]:
        """How many validation runs, SBOMs and provenances of the image the key signed."""
        image = attachments.drop_untrusted(self.published_image(), KEY)
        return {
            "runs": len(image.attestations),
            "SBOMs": len(image.statements_of(CYCLONEDX)),
            "provenances": len(image.statements_of(PROVENANCE)),
        }


ONE_OF_EACH = {"runs": 1, "SBOMs": 1, "provenances": 1}


def run_of(*claims: Claim) -> Attestation:
    """A validation run of the image, of yesterday."""
    return validated(INFO.digest, YESTERDAY, claims)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    build_record = {
        "digest": INFO.digest,
        "base": {"reference": "x", "origin": "made"},
        "engine": {"version": "28"},
    }
    (tmp_path / "build.json").write_text(json.dumps(build_record))
    registry = BlobRegistry()
    with serving() as server, Registry(Repository(server.host, "images")) as target:
        server.answer = registry.answer
        yield Publisher(registry, target, tmp_path)


# --- what is attached and signed ------------------------------------------------------------------


def test_a_second_time_nothing_is_sent_or_signed(publisher: Publisher) -> None:
    first_result = publisher.publish(PIP)
    received = publisher.registry.received
    manifests = dict(publisher.registry.manifests)

    second_result = publisher.publish(PIP)

    assert second_result == first_result
    assert publisher.registry.received == received
    assert publisher.registry.manifests == manifests


def test_after_an_sbom_that_took_too_long_no_layer_is_sent_again(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_too_long(*_: object) -> None:
        raise Stopped(Problem(where=NAME, cause="did not end within 600 s and was stopped"), code=1)

    with monkeypatch.context() as patch:
        patch.setattr(sbom, "read_packages", take_too_long)
        with pytest.raises(UserError) as error:
            publisher.publish(PIP)
    sent = set(publisher.registry.blobs["images"])

    publisher.publish(PIP)

    (problem,) = error.value.problems
    assert "for the SBOM did not end within 600 s" in problem.cause
    assert "it sends no layer again" in problem.then
    published_again = publisher.published_image()
    assert published_again.statements_of(CYCLONEDX)
    assert {layer.digest for layer in published_again.manifest.layers} <= sent


def test_what_others_attached_is_neither_counted_nor_copied_nor_signed(
    publisher: Publisher,
) -> None:
    publisher.publish(PIP)
    publisher.attach_forged_statements(publisher.target.get(NAME))

    result = publisher.publish(PIP)

    assert "latest stays: the gpu tier was not judged" in result.unmoved_tags
    assert "latest" not in result.tags
    warning = "2 attachments ignored: not signed by --key"
    assert any(warning in message for message in publisher.messages)
    assert publisher.signed_statements() == ONE_OF_EACH
    assert len(publisher.published_image().statements) == 5


def test_what_was_attached_before_the_first_publication_keeps_nothing_of_ours_away(
    publisher: Publisher,
) -> None:
    """Who has the image knows its digest: a forged SBOM must not stand in place of ours."""
    publisher.attach_forged_statements(publisher.push())

    result = publisher.publish(PIP)

    assert NAME in result.tags
    assert publisher.signed_statements() == ONE_OF_EACH


def test_another_machine_with_the_key_adds_its_tier_without_a_build_record(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(PIP)

    result = publisher.publish(GPU_PIP, folder=tmp_path / "gpu")

    assert "latest" in result.tags
    two_runs = {**ONE_OF_EACH, "runs": 2}
    assert publisher.signed_statements() == two_runs
    publisher.publish(PIP)
    assert publisher.signed_statements() == two_runs, "the first run is there already"


@pytest.mark.parametrize("key", ["", "other.key"], ids=["without a key", "with another key"])
def test_a_tier_that_was_added_without_the_key_opens_nothing_for_the_key(
    publisher: Publisher, key: str
) -> None:
    publisher.publish(PIP)
    assert "latest" in publisher.publish(PIP, GPU_PIP, key=key).tags

    result = publisher.publish(PIP)

    assert "latest stays: the gpu tier was not judged" in result.unmoved_tags
    assert publisher.signed_statements() == ONE_OF_EACH


def test_a_publication_that_changes_nothing_signs_a_tag_that_was_set_back_by_hand(
    publisher: Publisher,
) -> None:
    publisher.publish(PIP)
    newer = published(publisher.target, "newer", date=days_ago(0), key=KEY, created=days_ago(-1))
    attachments.sign_image(publisher.target, newer.manifest.digest, KEY, KEY, [NAME])
    assert not tag_is_verified(publisher), "the key signed the newer image for it last"

    publisher.publish(PIP)

    assert tag_is_verified(publisher)
    manifests = dict(publisher.registry.manifests)
    publisher.publish(PIP)
    assert publisher.registry.manifests == manifests, "it signs once"


def tag_is_verified(publisher: Publisher) -> bool:
    """Whether `verify` passes the tag NAME."""
    _reference, checks = verify(Reference(publisher.target.repository, NAME), POLICY, key=KEY)
    (status,) = [check.status for check in checks if check.subject == "tag"]
    return status is Status.PASS


def test_labels_that_contradict_the_sbom_attach_nothing_and_move_no_tag(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbom, "make_sbom", lambda *_, **__: {"components": []})

    with pytest.raises(UserError, match=r"names pip 26\.3, and its SBOM has none"):
        publisher.publish(PIP)

    assert publisher.target.find(NAME) is None
    tag_of_statements = attachments.attached_tag(publisher.push().digest, "att")
    assert publisher.target.find(tag_of_statements) is None


# --- the gate -------------------------------------------------------------------------------------

TORCH = replace(PIP, subject="torch")
TORCH_FAILS = replace(TORCH, expect={**PIP.expect, "version": "2"})
GPU_PIP_FAILS = replace(GPU_PIP, expect={**PIP.expect, "version": "2"})
PIP_OF_ANOTHER_BUILD = replace(PIP, expect={**PIP.expect, "locals": ["", "+cpu"]})


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        pytest.param(GPU_PIP, "the static tier was not judged", id="no tier of the gate"),
        pytest.param(
            TORCH,
            r"did not measure pins/pip \(static\): these claims are newer, or it measured only",
            id="not every claim of today",
        ),
        pytest.param(
            PIP_OF_ANOTHER_BUILD,
            "of the image has changed .locals.",
            id="another expectation",
        ),
    ],
)
def test_where_the_gate_is_closed_nothing_is_stored(
    publisher: Publisher, claim: Claim, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        publisher.publish(claim)

    assert not publisher.registry.blobs["images"]
    assert not publisher.registry.manifests


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(TORCH_FAILS, id="a claim that is gone today"),
        pytest.param(GPU_PIP_FAILS, id="another expectation, in a tier that the gate does not ask"),
    ],
)
def test_a_run_that_failed_by_the_claims_of_its_day_closes_every_gate(
    publisher: Publisher, claim: Claim
) -> None:
    """Whether it is the new run or an attached one, and whoever asks: one function decides."""
    cause = rf"{claim.key}.* is FAIL: .*today's matrix.yaml expects"

    with pytest.raises(UserError, match=cause) as error:
        publisher.publish(PIP, claim)

    assert "validate" in error.value.problems[0].then
    assert not publisher.registry.manifests

    # The run is attached to the published image later, with the key.
    publisher.publish(PIP)
    older_result = result_of([run_of(PIP, claim)], replace(CLAIMS, claims=(PIP, claim)))
    attach(publisher.target, NAME, TEST_RESULT, older_result, KEY)

    with pytest.raises(UserError, match=cause):
        publisher.publish(PIP, GPU_PIP)
    reference = Reference(publisher.target.repository, NAME)
    with pytest.raises(UserError, match=cause):
        promote(reference, Repository(reference.repository.host, "production"), POLICY, key=KEY)
    _digest, checks = verify(reference, POLICY, key=KEY)
    (gate_check,) = [check for check in checks if check.subject == "gate static"]
    assert gate_check.status is Status.FAIL
    assert re.search(cause, gate_check.reason)


# --- what others put under the dated tag ----------------------------------------------------------


def layer_of(blob: bytes) -> Descriptor:
    return Descriptor.of(MEDIA_TYPE, blob)


NO_GZIP = b"no gzip"


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([layer_of(OWN_BLOB), layer_of(FOREIGN_BLOB)], id="one more"),
        pytest.param([], id="none"),
        pytest.param([layer_of(FOREIGN_BLOB)], id="another"),
        pytest.param([layer_of(OWN_BLOB + FOREIGN_BLOB)], id="the same and more"),
        pytest.param([layer_of(NO_GZIP)], id="not compressed"),
        pytest.param([Descriptor.of("text/plain", OWN_BLOB)], id="of another type"),
    ],
)
@pytest.mark.parametrize("machine", ["the same", "another"])
def test_no_manifest_with_other_layers_is_signed(
    publisher: Publisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: list[Descriptor],
    machine: str,
) -> None:
    """Not even if the key signed it without a counter, by `cosign sign`, reading no layers."""
    dated_tag = publisher.publish(PIP, key="").tags[0]
    image = publisher.published_image()
    for blob in (FOREIGN_BLOB, OWN_BLOB, OWN_BLOB + FOREIGN_BLOB, NO_GZIP):
        publisher.target.put_blob(blob)
    forged = image_manifest(image.manifest.config, layers, image.created)
    publisher.target.put(forged, dated_tag)
    with monkeypatch.context() as older_release:
        older_release.setattr(attachments, "_COUNTER", "none")
        attachments.sign_image(publisher.target, forged.digest, KEY, KEY, [NAME])

    cache = publisher.build_folder if machine == "the same" else tmp_path / "other"
    with pytest.raises(UserError, match="has other layers than the image"):
        publisher.publish(PIP, cache=cache)

    signatures = [tag for tag in publisher.registry.manifests if str(tag).endswith(".sig")]
    assert len(signatures) == 1, "that of the older release"


def test_what_another_machine_pushed_is_signed_after_its_layers_were_compared(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(PIP, key="")

    publisher.publish(PIP, cache=tmp_path / "other")

    assert publisher.signed_statements() == ONE_OF_EACH


# --- the dated tag --------------------------------------------------------------------------------


def test_a_dated_tag_that_names_another_image_is_refused(publisher: Publisher) -> None:
    (dated_tag, *_) = publisher.publish(PIP).tags
    other = published(publisher.target, "another", date=YESTERDAY)
    publisher.target.put(other.manifest, dated_tag)

    cause = f"{dated_tag}: this tag names {other.image_id[:19]} already"
    with pytest.raises(UserError, match=cause):
        publisher.publish(PIP)


def test_a_dated_tag_that_names_an_index_is_refused(publisher: Publisher) -> None:
    (dated_tag, *_) = publisher.publish(PIP).tags
    publisher.target.put(index([]), dated_tag)

    with pytest.raises(UserError, match="is an index"):
        publisher.publish(PIP)


def test_an_image_keeps_the_date_of_its_first_publication(publisher: Publisher) -> None:
    """It has the same ID whenever it is built, and a run of another day adds its evidence."""
    first_day, later_day = "2026-11-21T10:00:00Z", "2026-11-23T10:00:00Z"

    first = publisher.publish(PIP, day=first_day)
    elsewhere = publisher.build_folder.parent / "elsewhere"
    later = publisher.publish(PIP, GPU_PIP, day=later_day, folder=elsewhere)

    dated_tag = f"{NAME}-20261121-{SHORT_ID}"
    assert dated_tag in first.tags
    assert dated_tag in later.tags
    assert not [tag for tag in later.tags if "-20261123-" in tag]
    image = publisher.published_image()
    assert image.manifest.digest == publisher.published_image(dated_tag).manifest.digest
    assert image.created == first_day
    assert len(image.attestations) == 2


@pytest.mark.parametrize(
    "date",
    [
        pytest.param("2999-11-21T10:00:00Z", id="in the future"),
        pytest.param("2026-11-23T10:00:00Z", id="not that of the tag"),
    ],
)
def test_a_date_that_somebody_wrote_into_the_manifest_is_not_taken_over(
    publisher: Publisher, date: str
) -> None:
    own = publisher.push()
    forged = image_manifest(own.config, own.layers, date)
    publisher.target.put(forged, f"{NAME}-20261121-{SHORT_ID}")

    result = publisher.publish(PIP, day="2026-11-22T10:00:00Z")

    assert result.tags
    assert publisher.published_image().created == "2026-11-22T10:00:00Z"


# --- the local image and its run ------------------------------------------------------------------


def read_local_image(folder: Path, *, name: str = NAME, image_id: str = DIGEST) -> LocalImage:
    """Read an image of this ID, with the validation run in a folder."""
    engine = cast("Engine", SimpleNamespace(inspect=lambda _: image_info(digest=image_id)))
    return release.read_local_image(engine, "x", ImageName.parse(name), folder)


def test_an_image_is_read_with_the_run_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "evidence.json").write_text(evidence(PIP).dumps())

    image = read_local_image(tmp_path)

    assert image.run.verdict == judged(PIP)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no evidence of a validation") as raised:
        read_local_image(tmp_path)

    (problem,) = raised.value.problems
    assert f"give --attestation out/validate/{NAME}" in problem.then


@pytest.mark.parametrize(
    ("name", "image_id", "cause"),
    [
        pytest.param(
            NAME,
            "sha256:" + "1" * 64,
            f"this folder has the evidence of {NAME} sha256:abab",
            id="another build of this name",
        ),
        pytest.param(
            "cu128-torch28", DIGEST, "to be published is cu128-torch28", id="another name"
        ),
    ],
)
def test_the_run_of_another_image_is_refused(
    tmp_path: Path, name: str, image_id: str, cause: str
) -> None:
    (tmp_path / "evidence.json").write_text(evidence(PIP).dumps())

    with pytest.raises(UserError, match=cause):
        read_local_image(tmp_path, name=name, image_id=image_id)
