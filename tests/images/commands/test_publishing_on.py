"""`publish --on`: what workers are told, what counts of their answers, and that keys, verdicts and tags stay here."""

import gzip
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from images.apptainer import published as as_published
from images.commands import executors, publishing_on, trials
from images.commands.executors import ExecutorArguments
from images.commands.publishing_on import Publishing, PublishRequest
from images.config.names import ImageName
from images.engine import Engine, ImageInfo, ImagePart
from images.errors import Problem, UserError
from images.fleet import travel
from images.fleet.config import Fleet
from images.fleet.deliveries import submitting
from images.fleet.deliveries import worker as deliveries
from images.fleet.deliveries.layers import layers_in
from images.fleet.deliveries.model import DeliveryJob, DeliveryResult
from images.fleet.deliveries.submitting import PushedContent, fault
from images.fleet.executors.executor import Ended, Placed
from images.fleet.executors.local import LocalExecutor
from images.fleet.model import WorkerInfo
from images.fleet.results import ToldProblem
from images.fleet.travel import Found
from images.host import cache as host_cache
from images.host.hashing import oci_digest
from images.publish import attachments, publication, sbom, signing
from images.publish.chunked.contents import TOC_DIGEST
from images.publish.compression import Compression
from images.publish.policy import ReleasePolicy
from images.publish.publication import PublishResult
from images.publish.unpublished_image import PublishOptions
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, OCI_INDEX, Descriptor, image_manifest, index
from images.registry.reference import Repository
from images.registry.retries import RegistryRetry
from tests.images.fleet.test_builds import Obedient
from tests.images.publish import test_push
from tests.support import attested
from tests.support.attested import NAME, PIP, judged
from tests.support.blob_registry import BlobRegistry
from tests.support.commands import call
from tests.support.http_server import serving
from tests.support.published import FOUND, LABELS
from validate.claims import ClaimSet, Tier

BOTH, OTHER = (Compression.GZIP, Compression.ZSTD), "cu126-torch25"


def layer(number: int) -> bytes:
    """Small, but larger than all that is attached."""
    return test_push.layer(number, 1 << 17)


@dataclass
class Holder:
    """A worker's engine, in the little that a push asks of it: it has one image."""

    name: str = NAME
    seed: int = 1
    facts: Any = field(default_factory=lambda: SimpleNamespace(podman=False, version="28.5", url="unix:///x"))
    asked: list[str] = field(default_factory=list)
    """Diff IDs that were read."""

    @property
    def layers(self) -> list[bytes]:
        return [layer(self.seed), layer(self.seed + 1)]

    @property
    def config(self) -> bytes:
        labels = {f"dev.truetag.{key}": value for key, value in {**LABELS, "image": self.name}.items()}
        rootfs = {"type": "layers", "diff_ids": [oci_digest(one) for one in self.layers]}
        data = {"architecture": "amd64", "os": "linux", "created": "2026-11-21T02:20:00Z", "rootfs": rootfs}
        return json.dumps({**data, "config": {"Labels": labels}}).encode()

    @property
    def info(self) -> ImageInfo:
        return as_published.image_info("", oci_digest(self.config), json.loads(self.config))

    def parts(self, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        yield ImagePart(digest=info.id, size=0, chunks=iter([self.config]))
        for content in self.layers:
            if (digest := oci_digest(content)) in wanted:
                self.asked.append(digest)
                yield ImagePart(digest=digest, size=len(content), chunks=iter([content]))

    def find(self, _reference: str) -> ImageInfo:
        return self.info

    def sweep(self) -> tuple[str, ...]:
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


@dataclass
class Site:
    """A registry with the validated image, pushed by the worker that built it; another repository is published to."""

    host: str
    registry: BlobRegistry
    folder: Path
    engine: Holder
    says: list[str] = field(default_factory=list)

    def folder_of(self, engine: Holder) -> Path:
        """As `build --on` leaves it."""
        folder = self.folder / engine.name
        folder.mkdir(exist_ok=True)
        measured = replace(attested.evidence(PIP), image=engine.name, digest=engine.info.id)
        for name, content in zip(("verdict.json", "evidence.json"), attested.files(measured), strict=True):
            (folder / name).write_bytes(content)
        record = {"digest": engine.info.id, "base": {"reference": "x", "origin": "made"}, "engine": {"version": "28"}}
        (folder / "build.json").write_text(json.dumps(record))
        return folder

    def built(self, engine: Holder) -> Path:
        """The folder of an image that a worker built and sent to `lab`."""
        folder, place = self.folder_of(engine), Repository(self.host, "lab")
        reference = travel.send(
            cast("Engine", engine), engine.info, place, self.folder / "builder", lambda _event: None
        )
        travel.note(folder, engine.info.id, reference)
        engine.asked.clear()
        self.registry.received = 0
        return folder

    def wish(self, folder: Path, name: str = NAME, **more: Any) -> PublishRequest:
        policy = ReleasePolicy(
            gate=(Tier.STATIC,),
            alias_gate=(Tier.STATIC,),
            aliases_of=lambda _name: (),
            claims_of=lambda _labels: ClaimSet(image=name, claims=(PIP,)),
        )
        given: dict[str, Any] = {"repository": Repository(self.host, "images"), "compressions": BOTH, "policy": policy}
        options = PublishOptions(
            name=ImageName.parse(name), attestation=folder, locks={}, cache=self.folder / "here", **{**given, **more}
        )
        return PublishRequest(options=options)

    def publish(self, *wishes: PublishRequest, through: str = "") -> list[PublishResult | UserError]:
        how = ExecutorArguments(through=through)
        return list(Publishing(how=how, say=lambda _key, text: self.says.append(text)).all([[one] for one in wishes]))

    def layers_read(self) -> list[str]:
        """Digests of the layers of `lab` that are read from now on."""
        read: list[str] = []
        names = [layer for _, content in self.registry.manifests.values() for layer in json.loads(content)["layers"]]
        digests = {one["digest"] for one in names}

        def note(method: str, path: str) -> bool:
            if method == "GET" and (digest := path.rpartition("/")[2]) in digests:
                read.append(digest)
            return True

        self.registry.before = note
        return read

    def tags(self, repository: str = "images") -> set[str]:
        """But for those that hold what refers to an image."""
        return {tag for tag in self.registry.tags(repository) if not tag.startswith("sha256-")}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setattr(RegistryRetry, "sleep", lambda *_: None)
    monkeypatch.setattr(host_cache, "folder", lambda: tmp_path / "worker")
    monkeypatch.setattr(sbom, "read", lambda *_: sbom.packages_of(FOUND))
    engine = Holder()
    monkeypatch.setattr(deliveries, "connect", lambda *_, **__: engine)
    with serving() as server:
        registry = BlobRegistry()
        server.answer = registry.answer
        yield Site(server.host, registry, tmp_path, engine)


def published(done: PublishResult | UserError) -> PublishResult:
    assert isinstance(done, PublishResult), done
    return done


def refused(done: PublishResult | UserError) -> str:
    assert isinstance(done, UserError), done
    return str(done)


# --- what travels, and what does not ----------------------------------------------------------------------------------


def test_a_worker_stores_both_variants_and_tags_are_moved_here(site: Site) -> None:
    (done,) = map(published, site.publish(site.wish(site.built(site.engine))))
    fixed = f"{NAME}-20261121-{site.engine.info.id[7:19]}"
    assert site.tags() == {NAME, f"{NAME}-zstd", fixed, f"{fixed}-zstd"} and site.tags("lab") == set()
    with Registry(Repository(site.host, "images")) as registry:
        assert f"{registry.repository}@{registry.get(NAME).digest}" == done.reference
    assert set(done.bytes) == {"gzip", "zstd"} and not done.signed
    assert any("MB sent" in text for text in site.says)


def test_in_one_registry_no_layer_travels_twice(site: Site) -> None:
    """The worker has not compressed the layers: it reads once what `--through` has, and mounts it."""
    folder = site.built(site.engine)
    read = site.layers_read()
    (done,) = map(published, site.publish(site.wish(folder, compressions=(Compression.GZIP,))))
    assert site.engine.asked == [] and site.registry.received < len(layer(1))
    assert len(read) == len(set(read)) == 2
    with Registry(Repository(site.host, "lab")) as lab:
        assert lab.find(done.reference.partition("@")[2]), "the same bytes, so the same manifest"


def test_layers_that_the_worker_compressed_itself_are_not_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It built the image, and pushed it."""
    folder = site.built(site.engine)
    monkeypatch.setattr(host_cache, "folder", lambda: site.folder / "of-this-machine")
    (site.folder / "of-this-machine").mkdir()
    (site.folder / "builder").rename(site.folder / "of-this-machine" / "push")
    read = site.layers_read()
    published(site.publish(site.wish(folder, compressions=(Compression.GZIP,)))[0])
    assert read == [] and site.engine.asked == []


@pytest.mark.parametrize("content", [gzip.compress(layer(9)), b"no gzip at all"])
def test_another_layer_behind_the_right_configuration_gets_no_tag(site: Site, content: bytes) -> None:
    """Whoever may write to `--through` can put it there; the engine has the image, so it pulls nothing."""
    folder = site.built(site.engine)
    with Registry(Repository(site.host, "lab")) as lab:
        reference = json.loads((folder / "pushed.json").read_text())["reference"]
        true = lab.get(reference.partition("@")[2])
        lab.put_blob(content)
        foreign = Descriptor.of(Compression.GZIP.media_type, content)
        lab.put(manifest := image_manifest(true.config, [true.layers[0], foreign]))
    travel.note(folder, site.engine.info.id, f"{site.host}/lab@{manifest.digest}")
    told = refused(site.publish(site.wish(folder, compressions=(Compression.GZIP,)))[0])
    assert f"{foreign.digest}: does not unpack to layer {site.engine.info.layers[1][:19]}" in told
    assert f"next: see who may write to {site.host}/lab" in told and "`nox -s build -- " in told
    assert site.tags() == set() and not [key for key in site.registry.manifests if key.startswith("images:")]


def test_into_another_registry_the_worker_sends_the_layers(site: Site) -> None:
    folder, target = site.built(site.engine), BlobRegistry()
    with serving() as other:
        other.answer = target.answer
        wish = site.wish(folder, repository=Repository(other.host, "images"), compressions=(Compression.GZIP,))
        (done,) = map(published, site.publish(wish))
    assert site.registry.received == 0 and target.received > 2 * len(layer(1)) - 4096
    assert set(site.engine.asked) == set(site.engine.info.layers)
    assert NAME in target.tags("images") and done.bytes["gzip"] > 2 * len(layer(1)) - 4096


def test_the_same_command_again_asks_no_worker(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = site.wish(site.built(site.engine))
    before = published(site.publish(wish)[0])
    monkeypatch.setattr(executors, "executor", lambda *_: pytest.fail("nothing is lacking"))
    assert published(site.publish(wish)[0]).references == before.references


def test_a_job_holds_no_key_and_no_verdict(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signing begins when the worker has ended."""
    told: list[str] = []

    def answer(placed: Placed) -> Ended:
        told.append(repr(placed.task))
        return Ended(key=placed.key, cause="the node died")

    monkeypatch.setattr(signing, "require", lambda _key: None)
    monkeypatch.setattr(executors, "executor", lambda *_: Obedient(answer))
    refused(site.publish(site.wish(site.built(site.engine), key="/home/me/cosign.key"))[0])
    (text,) = told
    assert "cosign" not in text and "verdict" not in text and '"compressions":["gzip","zstd"]' in text


def test_a_worker_without_a_docker_engine_says_so(site: Site) -> None:
    wish = site.wish(site.built(site.engine))
    site.engine.facts.podman = True
    assert "Podman's layers are not sent from here\n    next: give the workers" in refused(site.publish(wish)[0])
    assert site.tags() == set()


@pytest.mark.parametrize("late", [False, True])
def test_what_another_writer_drops_from_the_list_of_referrers_is_listed_again(site: Site, late: bool) -> None:
    """Of a registry without the referrers API: right after all are attached, or before the tags move."""
    wish = site.wish(site.built(site.engine), compressions=(Compression.GZIP,))
    asked: list[bool] = []
    """Whether a dated tag or the name was asked for: requests since all three were listed."""

    def before(_method: str, path: str) -> bool:
        found = site.registry.manifests.items()
        lists = [key for key, (_, content) in found if key.startswith("images:sha256-") and _has_three(content)]
        if lists:
            asked.append(f"/images/manifests/{NAME}" in path)
            if (asked.count(True) == 1 and asked[-1]) if late else len(asked) == 2:  # the first reads the list back
                site.registry.manifests[lists[0]] = (OCI_INDEX, index([]).content)
        return True

    site.registry.before = before
    (done,) = map(published, site.publish(wish))
    assert any(asked)
    with Registry(Repository(site.host, "images")) as target:
        image = attachments.load(target, target.get(NAME))
    assert [len(image.of(kind)) for kind in attachments.NAMES] == [1, 1, 1] and image.reference == done.reference


def _has_three(content: bytes) -> bool:
    return len(json.loads(content).get("manifests", ())) == 3


# --- what counts of the answer ----------------------------------------------------------------------------------------


def lying(site: Site, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """A worker that does its job, and tells something else."""

    def answer(placed: Placed) -> Ended:
        (done,) = _local(placed)
        assert isinstance(done.result, DeliveryResult)
        return Ended(key=placed.key, result=done.result.model_copy(update=more))

    monkeypatch.setattr(executors, "executor", lambda *_: Obedient(answer))


def _local(placed: Placed) -> list[Ended]:
    executor = LocalExecutor()
    executor.start([placed])
    return list(executor.ended())


def test_a_manifest_that_is_not_the_validated_images_gets_no_tag(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    wish, other = site.wish(site.built(site.engine), compressions=(Compression.GZIP,)), Holder(seed=7)
    with Registry(Repository(site.host, "images")) as target:
        for content in (other.config, site.engine.config, layer(1)):
            target.put_blob(content)
        own = Descriptor.of(OCI_CONFIG, site.engine.config)
        tar = Descriptor.of(Compression.GZIP.media_type, layer(1))
        zstd = Descriptor.of(Compression.ZSTD.media_type, layer(1))
        digests = []
        for config, layers in (
            (Descriptor.of(OCI_CONFIG, other.config), [tar, tar]),
            (own, [tar]),
            (own, [zstd, zstd]),
        ):
            target.put(manifest := image_manifest(config, layers))
            digests.append(manifest.digest)
    for digest, why in zip(
        [*digests, "sha256:" + "0" * 64, ""],
        ("another image than the validated", "1 layers, not 2", "2 layers, not 2 of", "no worker stored", "no worker"),
        strict=True,
    ):
        lying(site, monkeypatch, manifests={Compression.GZIP: digest})
        assert why in refused(site.publish(wish)[0])
        assert site.tags() == set()


@pytest.mark.parametrize("other", [{"run": "of-last-week"}, {"key": "another"}])
def test_a_result_of_another_run_or_job_is_none(
    site: Site, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    lying(site, monkeypatch, **other)
    assert "is of another job" in refused(site.publish(site.wish(site.built(site.engine)))[0])
    assert site.tags() == set()


def test_packages_that_are_none_are_no_sbom(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(site, monkeypatch, packages={"python": [{"nonsense": 1}]})
    assert "no worker told its packages" in refused(site.publish(site.wish(site.built(site.engine)))[0])
    assert site.tags() == set()


def test_packages_that_are_not_what_was_measured_are_no_sbom() -> None:
    """The suite measured (S10) one that the worker left out, and another version of one that it told."""
    row = judged(PIP).claims[0]
    measured = {"numpy": [{"version": "2.0"}], "pip": [{"version": "26.3"}, {"version": "26.4"}], "gone": []}
    wheels = replace(row, claim=replace(row.claim, id="S10"), evidence={"distributions": measured})
    now, worker = datetime.now(UTC), WorkerInfo(executor="x", node="n1")

    def content(numpy: str) -> PushedContent:
        python = [*FOUND["python"], *([{"name": "NumPy", "version": numpy}] if numpy else [])]
        told = {**FOUND, "python": python}
        result = DeliveryResult(key="k", run="r", worker=worker, started=now, ended=now, packages=told)
        return PushedContent(info=Holder().info, verdict=replace(judged(PIP), claims=(row, wheels)), result=result)

    assert len(content("2.0+cpu").packages().python) == 2
    for numpy, found in (("", "none"), ("2.1", "2.1")):
        with pytest.raises(UserError, match=f"numpy 2.0 was measured, the list of packages has {found}\n    next: pub"):
            content(numpy).packages()


def test_a_closed_gate_asks_no_worker(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "executor", lambda *_: pytest.fail("the gate is closed"))
    wish = site.wish(site.built(site.engine))
    closed = replace(wish.options, policy=replace(wish.options.policy, gate=(Tier.STATIC, Tier.CPU)))
    assert "the cpu tier was not judged" in refused(site.publish(replace(wish, options=closed))[0])
    assert site.registry.received == 0


def test_every_verdict_is_judged_again_when_the_worker_has_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may push for an hour: evidence that is another one by then names nothing."""
    folder = site.built(site.engine)

    def answer(placed: Placed) -> Ended:
        (done,) = _local(placed)
        failed = replace(attested.evidence(PIP, version="26.2"), image=NAME, digest=site.engine.info.id)
        for name, content in zip(("verdict.json", "evidence.json"), attested.files(failed), strict=True):
            (folder / name).write_bytes(content)
        return done

    monkeypatch.setattr(executors, "executor", lambda *_: Obedient(answer))
    assert "S1 pip (static) is FAIL" in refused(site.publish(site.wish(folder))[0])
    assert site.tags() == set()


def test_one_that_is_lost_stops_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Holder(name=OTHER, seed=3)
    wishes = [site.wish(site.built(site.engine)), site.wish(site.built(other), OTHER)]
    closed = site.wish(site.folder / "none", "cu128-torch28")
    monkeypatch.setattr(deliveries, "connect", lambda *_, **__: other)

    def answer(placed: Placed) -> Ended:
        job = DeliveryJob.model_validate_json(placed.task.job)  # type: ignore[attr-defined]
        return _local(placed)[0] if job.image == OTHER else Ended(key=placed.key, cause="the node died", node="n1")

    monkeypatch.setattr(executors, "executor", lambda *_: Obedient(answer))
    none, lost, done = site.publish(*wishes, closed)
    assert "there is no attestation" in refused(none)
    assert "the node died" in refused(lost) and "give the same command again" in refused(lost)
    assert OTHER in published(done).tags and NAME not in site.tags()


def test_an_interrupt_cancels_what_was_begun(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_placed: Placed) -> Ended:
        raise KeyboardInterrupt

    executor = Obedient(interrupted)
    monkeypatch.setattr(executors, "executor", lambda *_: executor)
    with pytest.raises(KeyboardInterrupt):
        site.publish(site.wish(site.built(site.engine)))
    assert executor.cancelled and site.tags() == set()


# --- where the image is -----------------------------------------------------------------------------------------------


def engine_here(monkeypatch: pytest.MonkeyPatch, engine: Holder | None) -> None:
    """A machine whose engine has one image, or without an engine."""
    monkeypatch.setattr(executors, "local_engine", lambda _url: engine or _Nothing())
    found = Found(digest="", described=cast("Any", None), home="/", local=engine.info) if engine else None
    monkeypatch.setattr(travel, "in_engine", lambda *_: found)


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def test_what_this_machine_alone_has_is_sent_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    engine_here(monkeypatch, site.engine)
    (done,) = map(published, site.publish(site.wish(site.folder_of(site.engine)), through=f"{site.host}/lab"))
    assert site.tags("lab") == set() and NAME in done.tags


def test_an_image_that_is_nowhere_is_told_with_the_next_command(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    engine_here(monkeypatch, None)
    wish = site.wish(site.folder_of(site.engine))
    assert "no registry is named" in refused(site.publish(wish)[0])
    told = refused(site.publish(wish, through=f"{site.host}/lab")[0])
    assert f"{site.host}/lab has no tag of this name" in told and f"next: `nox -s build -- {NAME}`" in told
    named = replace(wish, reference="mine:1")
    assert "--image mine:1: is nowhere" in refused(site.publish(named, through=f"{site.host}/lab")[0])


def test_an_image_that_is_asked_for_is_looked_for_not_the_noted_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pushed.json` is there, and no --through."""
    wish = replace(site.wish(site.built(site.engine)), reference="mine:1")
    engine_here(monkeypatch, None)
    assert "--image mine:1: is nowhere" in refused(site.publish(wish)[0])
    engine_here(monkeypatch, site.engine)
    assert "no registry is named" in refused(site.publish(wish)[0])
    assert NAME in published(site.publish(wish, through=f"{site.host}/other")[0]).tags


def test_of_a_name_with_a_host_the_engines_image_is_taken_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registry is not even asked; by digest both are the same, and nothing need be sent."""
    wish = site.wish(site.built(site.engine))
    engine_here(monkeypatch, site.engine)
    named = replace(wish, reference="nobody.invalid/mine:1")
    assert "no registry is named" in refused(site.publish(named)[0])
    assert NAME in published(site.publish(named, through=f"{site.host}/other")[0]).tags
    reference = json.loads((site.folder / NAME / "pushed.json").read_text())["reference"]
    assert NAME in published(site.publish(replace(wish, reference=reference))[0]).tags


def test_a_tag_of_a_registry_needs_no_engine_and_no_through(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = site.wish(site.built(site.engine))
    reference = json.loads((site.folder / NAME / "pushed.json").read_text())["reference"]
    with Registry(Repository(site.host, "lab")) as lab:
        lab.put(lab.get(reference.partition("@")[2]), "mine")
    engine_here(monkeypatch, None)
    assert NAME in published(site.publish(replace(wish, reference=f"{site.host}/lab:mine"))[0]).tags


def test_a_note_about_an_earlier_build_is_not_followed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image was built anew on this machine since."""
    newer = Holder(seed=5)
    site.built(site.engine)
    folder = site.folder_of(newer)
    engine_here(monkeypatch, newer)
    monkeypatch.setattr(deliveries, "connect", lambda *_, **__: newer)
    (done,) = map(published, site.publish(site.wish(folder), through=f"{site.host}/lab"))
    assert any(newer.info.id[7:19] in tag for tag in done.tags)


def test_an_image_that_the_registry_has_collected_is_told(site: Site) -> None:
    wish = site.wish(site.built(site.engine))
    site.registry.manifests.clear()
    told = refused(site.publish(wish)[0])
    assert "is not in its registry any more" in told and f"next: `nox -s build -- {NAME} --on" in told


def test_a_platform_without_machines_stops_no_other(site: Site) -> None:
    arm, done = site.publish(
        site.wish(site.folder / "none", "cu130-torch211-arm64"), site.wish(site.built(site.engine))
    )
    assert "no machine of the fleet is linux/arm64" in refused(arm) and NAME in published(done).tags


def test_an_image_that_is_not_the_attested_one_is_refused(site: Site) -> None:
    site.built(site.engine)
    reference = json.loads((site.folder / NAME / "pushed.json").read_text())["reference"]
    folder = site.folder_of(Holder(seed=5))
    wish = replace(site.wish(folder), reference=reference)
    assert "is the attestation of" in refused(site.publish(wish)[0])


# --- pure -------------------------------------------------------------------------------------------------------------


def test_layers_are_at_hand_only_as_the_images_own_manifest_has_them() -> None:
    one, info = Holder(), Holder().info
    place = Repository("a.test", "lab")
    config = Descriptor.of(OCI_CONFIG, one.config)
    blob = Descriptor.of(Compression.GZIP.media_type, b"x")
    docker = replace(blob, media_type="application/vnd.docker.image.rootfs.diff.tar.gzip")
    found = layers_in(image_manifest(config, [blob, docker]), info, place)
    assert {key: (known.digest, known.repositories) for key, known in found.items()} == {
        (Compression.GZIP, info.layers[0]): (blob.digest, ("a.test/lab",))
    }
    chunked = replace(blob, media_type=Compression.ZSTD_CHUNKED.media_type, annotations={TOC_DIGEST: "sha256:0"})
    assert [*layers_in(image_manifest(config, [blob, chunked]), info, place)] == [(Compression.GZIP, info.layers[0])]
    assert layers_in(image_manifest(config, [blob]), info, place) == {}
    assert layers_in(image_manifest(config, [blob, blob]), Holder(seed=2).info, place) == {}


def test_a_workers_layers_are_of_the_compression_that_was_asked() -> None:
    one, info = Holder(), Holder().info
    config = Descriptor.of(OCI_CONFIG, one.config)
    plain = Descriptor.of(Compression.ZSTD.media_type, b"x")
    zstd = image_manifest(config, [plain, plain])
    chunked = image_manifest(config, [replace(plain, annotations={TOC_DIGEST: "sha256:0"})] * 2)
    assert fault(zstd, info, Compression.ZSTD) == fault(chunked, info, Compression.ZSTD_CHUNKED) == ""
    assert fault(zstd, info, Compression.ZSTD_CHUNKED) == "its worker stored zstd layers, not zstd:chunked"
    assert fault(chunked, info, Compression.ZSTD) == "its worker stored zstd:chunked layers, not zstd"
    assert "not 2 of application/vnd.oci.image.layer.v1.tar+gzip" in fault(zstd, info, Compression.GZIP)


def test_a_push_that_was_told_badly_is_no_result() -> None:
    now = datetime.now(UTC)
    worker = WorkerInfo(executor="x", node="n1")
    told = (ToldProblem(where="disk", cause="no space", then="make room"),)
    result = DeliveryResult(key="k", run="r", worker=worker, started=now, ended=now, problems=told)
    found = submitting.result_of(Ended(key="k", result=result), "r")
    assert isinstance(found, UserError) and "disk: no space" in str(found)


# --- the verb ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--on", "slurm", "--engine", "unix:///x"), "--engine unix:///x: does not reach workers of slurm"),
        (("--through", "a.test/b"), "--through: is about workers"),
        (("--on", "condor"), "--on condor: is nothing that runs jobs"),
        ((OTHER, "--image", "x"), "--image and --attestation mean one image"),
        ((OTHER, "--attestation", "x"), "--image and --attestation mean one image"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], told: str) -> None:
    done = call("publish", NAME, "--to", "registry.test/x", *words)
    assert done.returncode == 2 and told in " ".join(done.stderr.split()) and "next:" in done.stderr


def test_a_connection_that_breaks_swallows_no_failure_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Publishing, _rows: Any) -> Iterator[PublishResult | UserError]:
        yield UserError(Problem(where=NAME, cause="the gate is closed"), code=1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing_on.Publishing, "all", broken)
    done = call("publish", NAME, OTHER, "--to", "a.test/b", "--on", "slurm")
    assert done.returncode == 1 and "the gate is closed" in done.stderr
    assert f"{NAME} {OTHER}: No space left" in done.stderr and done.stderr.count("next:") == 1


def test_here_too_what_the_system_refuses_stops_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(_engine: Engine, found: Any, **_more: Any) -> PublishResult:
        if str(found[0].options.name) == NAME:
            raise OSError(28, "No space left on device")
        return PublishResult(
            references={"gzip": "a.test/b@sha256:1"},
            bytes={"gzip": 1},
            tags=(OTHER,),
            unmoved_aliases=(),
            seconds={},
            signed=True,
        )

    monkeypatch.setattr(publication, "publish_together", publish)
    monkeypatch.setattr(trials, "open_engine", lambda *_, **__: Holder())
    done = call("publish", NAME, OTHER, "--to", "a.test/b")
    assert done.returncode == 1 and f"{NAME}: No space left" in done.stderr and "a.test/b@sha256:1" in done.stdout


@pytest.mark.parametrize("asked", [(), ("--drop-platforms",)])
def test_a_platform_is_dropped_only_where_that_is_asked_for(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def publish(_engine: Engine, found: Any, **_more: Any) -> PublishResult:
        seen.append(found[0].options.drop_platforms)
        raise UserError(Problem(where=NAME, cause="that is all"), code=1)

    monkeypatch.setattr(publication, "publish_together", publish)
    monkeypatch.setattr(trials, "open_engine", lambda *_, **__: Holder())
    call("publish", NAME, "--to", "a.test/b", *asked)
    assert seen == [bool(asked)]


def test_slurm_is_told_the_key_whose_variables_stay_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def executor(_on: str, _folder: Path, _fleet: Fleet, key: str) -> Obedient:
        told.append(key)
        return Obedient(lambda placed: Ended(key=placed.key, cause="the node died"))

    monkeypatch.setattr(signing, "require", lambda _key: None)
    monkeypatch.setattr(executors, "executor", executor)
    refused(site.publish(site.wish(site.built(site.engine), key="env://MINE"))[0])
    assert told == ["env://MINE"]


def test_a_failure_before_the_cluster_was_found_gone_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_self: Publishing, _rows: Any) -> Iterator[PublishResult | UserError]:
        yield UserError(Problem(where=NAME, cause="the gate is closed"), code=1)
        raise UserError(Problem(where="--on slurm", cause="squeue ended with 1"), code=1)

    monkeypatch.setattr(publishing_on.Publishing, "all", gone)
    done = call("publish", NAME, OTHER, "--to", "a.test/b", "--on", "slurm")
    assert done.returncode == 1 and "the gate is closed" in done.stderr and "squeue ended" in done.stderr


def test_the_verb_publishes_each_name_and_tells_every_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def everything(self: Publishing, rows: Any) -> Iterator[PublishResult | UserError]:
        asked.extend([str(wish.options.name) for wish in row] for row in rows)
        assert self.how.on == "slurm"
        yield PublishResult(
            references={"gzip": "a.test/b@sha256:1"},
            bytes={"gzip": 1},
            tags=(NAME,),
            unmoved_aliases=(),
            seconds={},
            signed=True,
        )
        yield UserError(executors.no_engine_of("x", "slurm").problems)

    monkeypatch.setattr(publishing_on.Publishing, "all", everything)
    done = call("publish", NAME, OTHER, NAME, "--to", "a.test/b", "--on", "slurm", "--compression", "gzip")
    assert asked == [[NAME], [OTHER]]
    assert done.returncode == 1 and "a.test/b@sha256:1" in done.stdout and "does not reach workers" in done.stderr
