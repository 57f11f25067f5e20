"""From a proven image to a published one, and from staging to production: content first, moving tags last.

Everything here can be repeated: what is there already is not sent again, so an interrupted publication is finished by
giving the same command once more.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, ignore
from images.engine.buildkit import BuildEvent
from images.engine.failures import Cancelled
from images.errors import Problem, UserError
from images.publish import gate, provenance, sbom, signing
from images.publish.gate import Proof, Standing
from images.registry.client import Registry
from images.registry.distribution import TITLE, Descriptor, File, Manifest, referrers_tag, require_one_image
from images.registry.reference import Reference, Repository
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict
from validate.judging import Status

PROOF = "application/vnd.truetag.proof.v1"
SBOM = sbom.MEDIA_TYPE
PROVENANCE = provenance.MEDIA_TYPE
KINDS = {PROOF: "proof", SBOM: "SBOM", PROVENANCE: "provenance"}
_VERDICT_FILE, _EVIDENCE_FILE = "verdict.json", "evidence.json"
_JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to publish where, as the command line says it."""

    name: ImageName
    repository: Repository
    proof: Path
    """The folder that `nox -s build` or `nox -s validate` wrote."""
    gate: Sequence[Tier]
    whole_gate: Sequence[Tier]
    """The matrix's: aliases follow only what passes this one."""
    aliases: Sequence[str]
    promised: ClaimSet
    locks: Mapping[str, bytes]
    source: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What came of it. `bytes` of all layers, compressed, as the registry holds them."""

    reference: str
    tags: tuple[str, ...]
    kept_back: tuple[str, ...]
    """Why an alias stayed where it was."""
    bytes: int
    seconds: Mapping[str, float]
    signed: bool


@dataclass(frozen=True, kw_only=True)
class Attached:
    """One artifact that refers to an image, read and checked. `files` is name -> content."""

    kind: str
    digest: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A published image, as far as it can be read without its layers."""

    repository: Repository
    manifest: Manifest
    config: Mapping[str, Any]
    attached: tuple[Attached, ...]

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.manifest.digest}"

    @property
    def image_id(self) -> str:
        """The digest that verdicts name: of the configuration."""
        return self.manifest.config.digest

    @property
    def labels(self) -> Mapping[str, str]:
        return dict((self.config.get("config") or {}).get("Labels") or {})

    @property
    def created(self) -> str:
        return str(self.config.get("created") or "")

    @property
    def standing(self) -> Standing | None:
        return Standing.of(self.manifest.digest, self.labels, self.created)

    def of(self, kind: str) -> tuple[Attached, ...]:
        return tuple(one for one in self.attached if one.kind == kind)

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """Every attached proof, judged again. Raises UserError for one that is of another image."""
        found = []
        for one in self.of(PROOF):
            where = f"{self.repository}@{one.digest}"
            read = gate.proof(one.files.get(_VERDICT_FILE, b""), one.files.get(_EVIDENCE_FILE, b""), where)
            if read.verdict.digest != self.image_id:
                cause = f"the proof is of {read.verdict.digest[:19]}, the image is {self.image_id[:19]}"
                raise UserError(Problem(where=where, cause=cause, then="don't use it"), code=1)
            found.append(read)
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that `verify` looked at."""

    subject: str
    status: Status
    reason: str


@dataclass(kw_only=True)
class _Clock:
    """Seconds of each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage], self._since = round(now - self._since, 1), now


# --- publish --------------------------------------------------------------------------------------------------------


def publish(
    engine: Engine,
    reference: str,
    order: Order,
    *,
    say: Callable[[str], None],
    on_event: Callable[[BuildEvent], None] = ignore,
) -> Published:
    """Push an image that its proof opens the gate for; attach, sign, and only then move tags.

    Raises UserError: the proof is of another image or not enough, a tag would go backwards, a registry's refusal.
    """
    info = engine.inspect(reference)
    proof = read_proof(order.proof, str(order.name), info)
    if order.key:
        signing.require(order.key)
    new = _standing(info.id, info.labels, info.created, reference)
    tag = gate.immutable_tag(str(order.name), new.created, info.id)
    clock = _Clock()
    with Registry(order.repository) as target:
        target.check_access()
        _require_open(str(order.name), [proof.verdict, *_earlier(target, tag)], order.gate, order.promised)
        _require_forwards(target, str(order.name), new)
        manifest = _pushed(engine, info, target, tag, on_event)
        new = replace(new, digest=manifest.digest)
        clock.lap("push")
        _attach(engine, info, target, manifest, proof, order, say)
        clock.lap("attach")
        remote = load(target, manifest)
        _require_sound(remote)
        if order.key:
            signing.sign(remote.reference, order.key, [one.digest for one in remote.attached])
            clock.lap("sign")
        verdicts = [one.verdict for one in remote.proofs]
        moving, kept_back = _aliases(target, order.aliases, new, verdicts, order.whole_gate, order.promised)
        move_tags(target, manifest, [str(order.name), *moving])
        clock.lap("tags")
    return Published(
        reference=remote.reference,
        tags=(tag, str(order.name), *moving),
        kept_back=kept_back,
        bytes=sum(layer.size for layer in manifest.layers),
        seconds=clock.seconds,
        signed=bool(order.key),
    )


def read_proof(folder: Path, name: str, info: ImageInfo) -> Proof:
    """The trial in a folder. Raises UserError when it is not of this name and this very digest."""
    then = f"`nox -s build -- {name}` proves it anew; or `nox -s validate`, and give its folder with --proof"
    try:
        verdict_file = (folder / _VERDICT_FILE).read_bytes()
        evidence_file = (folder / _EVIDENCE_FILE).read_bytes()
    except OSError as error:
        cause = f"there is no proof: {error.strerror}: {error.filename}"
        raise UserError(Problem(where=str(folder), cause=cause, then=then)) from None
    found = gate.proof(verdict_file, evidence_file, str(folder))
    if (found.verdict.image, found.verdict.digest) != (name, info.id):
        cause = f"is the proof of {found.verdict.image} {found.verdict.digest[:19]}, the image is {name} {info.id[:19]}"
        raise UserError(Problem(where=str(folder), cause=cause, then=then), code=1)
    return found


def _require_open(where: str, verdicts: Sequence[Verdict], tiers: Sequence[Tier], promised: ClaimSet | None) -> None:
    if reasons := gate.refusals(verdicts, tiers, promised):
        asked = ",".join(map(str, tiers))
        then = f"the gate asks for {asked}; to staging, --gate static,cpu may do" if Tier.GPU in tiers else "mend it"
        raise UserError([Problem(where=where, cause=reason, then=then) for reason in reasons], code=1)


def _earlier(target: Registry, tag: str) -> tuple[Verdict, ...]:
    """Verdicts that are attached to this very image already: its tiers may have been judged on other machines."""
    found = target.find(tag)
    return tuple(one.verdict for one in load(target, found).proofs) if found else ()


def _pushed(
    engine: Engine, info: ImageInfo, target: Registry, tag: str, on_event: Callable[[BuildEvent], None]
) -> Manifest:
    """The image's manifest in the registry, pushed unless its immutable tag is there already."""
    found = target.find(tag)
    if found is None:
        name = f"{target.repository}:{tag}"
        engine.tag(info.id, name)
        try:
            engine.push(name, on_event=on_event)
        finally:
            engine.untag(name)
        found = target.get(tag)
    where = f"{target.repository}:{tag}"
    require_one_image(found, where)
    if info.id not in (found.config.digest, found.digest):
        cause = f"is {found.config.digest[:19]}, not the image that was proven ({info.id[:19]})"
        raise UserError(Problem(where=where, cause=cause, then="build anew: such tags are never moved"), code=1)
    return found


def _require_forwards(target: Registry, tag: str, new: Standing) -> None:
    if reason := _backwards(target, tag, new):
        then = "moving tags never go back: build and prove anew, or pull the older image by its dated tag"
        raise UserError(Problem(where=f"{target.repository}:{tag}", cause=reason, then=then), code=1)


def _backwards(target: Registry, tag: str, new: Standing) -> str:
    found = target.find(tag)
    old = None if found is None or found.is_index else load(target, found, attachments=False).standing
    return gate.backwards(tag, new, old, taken=found is not None)


def _aliases(
    target: Registry,
    aliases: Sequence[str],
    new: Standing,
    verdicts: Sequence[Verdict],
    whole_gate: Sequence[Tier],
    promised: ClaimSet | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The aliases to move, and why the others stay."""
    if aliases and (reasons := gate.refusals(verdicts, whole_gate, promised)):
        return (), tuple(f"{alias} stays: {reasons[0]}" for alias in aliases)
    answers = {alias: _backwards(target, alias, new) for alias in aliases}
    return (
        tuple(alias for alias, reason in answers.items() if not reason),
        tuple(f"{alias} stays: {reason}" for alias, reason in answers.items() if reason),
    )


def _attach(
    engine: Engine,
    info: ImageInfo,
    target: Registry,
    manifest: Manifest,
    proof: Proof,
    order: Order,
    say: Callable[[str], None],
) -> None:
    """SBOM and provenance once; each proof, as a GPU machine adds its own to what a builder published."""
    there = {one.artifact_type for one in target.referrers(manifest.digest)}
    subject, created = manifest.descriptor, info.created
    if PROVENANCE not in there:
        content = _provenance(info, manifest, order)
        target.attach(subject, PROVENANCE, [File(name="provenance.json", media_type=PROVENANCE, content=content)])
    if SBOM not in there:
        say("reading its packages")
        packages = sbom.read(engine, info.id)
        content = sbom.cyclonedx(packages, name=str(order.name), digest=info.id, created=_moment(created))
        target.attach(subject, SBOM, [File(name="sbom.cdx.json", media_type=SBOM, content=content)])
    files = [
        File(name=_VERDICT_FILE, media_type=_JSON, content=proof.verdict_file),
        File(name=_EVIDENCE_FILE, media_type=_JSON, content=proof.evidence_file),
    ]
    target.attach(subject, PROOF, files)


def _provenance(info: ImageInfo, manifest: Manifest, order: Order) -> bytes:
    path = order.proof / "build.json"
    then = f"publish first where `nox -s build -- {order.name}` was run: its folder holds build.json"
    try:
        build = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        cause = f"the record of the build can't be read: {error}"
        raise UserError(Problem(where=str(path), cause=cause, then=then), code=1) from None
    if build.get("digest") != info.id:
        raise UserError(Problem(where=str(path), cause="is the record of another build", then=then), code=1)
    return provenance.statement(
        provenance.Made(
            name=order.name,
            repository=str(order.repository),
            digest=manifest.digest,
            image_id=info.id,
            revision=info.labels.get(f"{LABELS}.matrix-revision", ""),
            source=order.source,
            locks=order.locks,
            build=build,
            created=info.created,
        )
    )


# --- tags -----------------------------------------------------------------------------------------------------------


def move_tags(target: Registry, manifest: Manifest, tags: Sequence[str]) -> None:
    """Let tags name a manifest: all of them, or none.

    The protocol has no transaction. So tags that exist are moved first and put back when anything fails; new ones come
    last, as not every registry can take a tag away. An interrupt waits for the request under way, whose effect nobody
    could tell, and then has everything put back. Raises UserError.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as worker:
        moving = worker.submit(_move_tags, target, manifest, tags, stop)
        try:
            moving.result()
        except BaseException:
            stop.set()
            raise


def _move_tags(target: Registry, manifest: Manifest, tags: Sequence[str], stop: threading.Event) -> None:
    before = {tag: target.find(tag) for tag in tags}
    existing = [tag for tag in tags if (found := before[tag]) and found.digest != manifest.digest]
    touched: list[str] = []
    try:
        for tag in [*existing, *(tag for tag in tags if before[tag] is None)]:
            touched.append(tag)  # before the request: it may arrive although its answer does not
            target.put(manifest, tag)
            if stop.is_set():
                raise Cancelled
        for tag in tags:
            if target.get(tag).digest != manifest.digest:
                raise _moved_by_others(target, tag)
    except Exception as error:
        left = [tag for tag in reversed(touched) if not _restored(target, tag, before[tag], manifest)]
        if left:
            raise _half_moved(target, left, error) from error
        raise


def _restored(target: Registry, tag: str, before: Manifest | None, ours: Manifest) -> bool:
    try:
        now = target.find(tag)
        if now is None or now.digest != ours.digest:
            return True  # it never moved, or somebody else moved it on
        if before is None:
            return target.delete_tag(tag)
        target.put(before, tag)
    except UserError:
        return False
    return True


def _moved_by_others(target: Registry, tag: str) -> UserError:
    cause = "somebody else moved it at the same time"
    return UserError(Problem(where=f"{target.repository}:{tag}", cause=cause, then="give the command again"), code=1)


def _half_moved(target: Registry, left: Sequence[str], error: BaseException) -> UserError:
    cause = f"moving tags failed ({str(error) or type(error).__name__}), and {', '.join(left)} could not be put back"
    return UserError(
        Problem(where=str(target.repository), cause=cause, then="give the same command again: it finishes the move"),
        code=1,
    )


# --- reading what is published --------------------------------------------------------------------------------------


def load(source: Registry, manifest: Manifest, *, attachments: bool = True) -> Remote:
    """An image's configuration and its attachments, every digest checked. Raises UserError."""
    if manifest.is_index:
        where = f"{source.repository}@{manifest.digest}"
        raise UserError(Problem(where=where, cause="is a list of images", then="name one of them by its digest"))
    config = json.loads(source.blob(manifest.config))
    attached = tuple(_attached(source, manifest.digest)) if attachments else ()
    return Remote(repository=source.repository, manifest=manifest, config=config, attached=attached)


def _attached(source: Registry, digest: str) -> Iterator[Attached]:
    for entry in source.referrers(digest):
        if entry.artifact_type not in KINDS:
            continue
        manifest = source.get(entry.digest)
        if manifest.subject != digest:
            where = f"{source.repository}@{entry.digest}"
            raise UserError(Problem(where=where, cause="is listed, but refers to another image", then="don't use it"))
        files = {layer.annotations.get(TITLE, layer.digest): source.blob(layer) for layer in manifest.layers}
        yield Attached(kind=entry.artifact_type, digest=entry.digest, files=files)


# --- promote --------------------------------------------------------------------------------------------------------


def promote(
    reference: Reference,
    to: Repository,
    *,
    tiers: Sequence[Tier],
    whole_gate: Sequence[Tier],
    aliases: Callable[[str], Sequence[str]],
    promised: Callable[[Remote], ClaimSet | None],
    key: str = "",
) -> Published:
    """Take an image of one repository over into another of the same registry, by digest, and move the tags there.

    Nothing is built or sent: blobs are mounted, manifests are put as they are. `aliases` and `promised` are asked with
    the image's name, and the image; aliases follow only what passes `whole_gate`. Raises UserError: the gate stays
    shut, a tag would go backwards, another registry.
    """
    if reference.repository.host != to.host:
        copy = f"`oras cp -r {reference} {to}:{reference.identifier}`"
        then = f"copy it with its attachments first: {copy}; then promote there"
        raise UserError(Problem(where=str(to), cause=f"is not on {reference.repository.host}", then=then))
    if key:
        signing.require(key)
    clock = _Clock()
    with Registry(reference.repository) as source, Registry(to, mount_from=reference.repository) as target:
        remote = load(source, source.get(reference.identifier))
        remote = believed(remote, key) if key else remote
        name = remote.labels.get(f"{LABELS}.image", "")
        new = _standing(remote.manifest.digest, remote.labels, remote.created, remote.reference)
        verdicts = [proof.verdict for proof in remote.proofs]
        claims = promised(remote)
        _require_open(remote.reference, verdicts, tiers, claims)
        _require_sound(remote)
        target.check_access()
        _require_forwards(target, name, new)
        _take_over(source, target, remote)
        clock.lap("take over")
        fixed = gate.immutable_tag(name, new.created, remote.image_id)
        moving, kept_back = _aliases(target, aliases(name), new, verdicts, whole_gate, claims)
        _require_fixed(target, fixed, remote.manifest)
        move_tags(target, remote.manifest, [fixed, name, *moving])
        clock.lap("tags")
    return Published(
        reference=f"{to}@{remote.manifest.digest}",
        tags=(fixed, name, *moving),
        kept_back=kept_back,
        bytes=sum(layer.size for layer in remote.manifest.layers),
        seconds=clock.seconds,
        signed=bool(key),
    )


def believed(remote: Remote, key: str) -> Remote:
    """The image with only those attachments that its signature covers. Raises UserError where there is no signature."""
    covered = signing.covered(remote.reference, key)
    attached = tuple(one for one in remote.attached if one.digest in covered)
    return replace(remote, attached=attached)


def _require_sound(remote: Remote) -> None:
    wrong = [check for check in checks(remote) if check.status is not Status.PASS]
    if wrong:
        raise UserError(
            [
                Problem(where=remote.reference, cause=f"{one.subject}: {one.reason}", then="publish it anew")
                for one in wrong
            ],
            code=1,
        )


def _require_fixed(target: Registry, tag: str, manifest: Manifest) -> None:
    found = target.find(tag)
    if found and found.digest != manifest.digest:
        cause = f"names {found.digest[:19]} already, and such tags are never moved"
        raise UserError(Problem(where=f"{target.repository}:{tag}", cause=cause, then="build anew"), code=1)


def _take_over(source: Registry, target: Registry, remote: Remote) -> None:
    """The image, then what refers to it, signatures last."""
    _copy(source, target, remote.manifest)
    target.put(remote.manifest)
    for entry in source.referrers(remote.manifest.digest):
        artifact = source.get(entry.digest)
        _copy(source, target, artifact)
        target.put_referrer(artifact)
    if signature := source.find(signature_tag(remote.manifest.digest)):
        _copy(source, target, signature)
        target.put(signature, signature_tag(remote.manifest.digest))


def signature_tag(digest: str) -> str:
    """Where cosign keeps the signatures of a digest."""
    return f"{referrers_tag(digest)}.sig"


def _copy(source: Registry, target: Registry, manifest: Manifest) -> None:
    for blob in _distinct([manifest.config, *manifest.layers]):
        if not target.mount(blob.digest, source.repository):
            cause = f"the registry does not lend {blob.digest[:19]} of {source.repository}"
            then = "both repositories must be readable with the same login"
            raise UserError(Problem(where=str(target.repository), cause=cause, then=then), code=1)


def _distinct(blobs: Sequence[Descriptor]) -> tuple[Descriptor, ...]:
    return tuple({blob.digest: blob for blob in blobs}.values())


# --- verify ---------------------------------------------------------------------------------------------------------


def verify(
    reference: Reference,
    *,
    tiers: Sequence[Tier],
    promised: Callable[[Remote], ClaimSet | None],
    key: str = "",
    unsigned: bool = False,
) -> tuple[str, tuple[Check, ...]]:
    """What a published image holds of what it says: its reference by digest, and the checks. Raises UserError."""
    if key:
        signing.require(key)
    with Registry(reference.repository) as source:
        remote = load(source, source.get(reference.identifier))
    found: list[Check] = []
    if key:
        try:
            covered = believed(remote, key)
        except UserError as error:
            found.append(Check(subject="signature", status=Status.FAIL, reason=error.problems[0].cause))
        else:
            left = len(remote.attached) - len(covered.attached)
            more = f"; {left} more are not covered and are not believed" if left else ""
            reason = f"valid, and covers {len(covered.attached)} attachments{more}"
            found.append(Check(subject="signature", status=Status.PASS, reason=reason))
            remote = covered
    elif not unsigned:
        reason = "not checked: give --key cosign.pub, or say --unsigned"
        found.append(Check(subject="signature", status=Status.UNPROVEN, reason=reason))
    return remote.reference, (*found, *checks(remote), _gate_check(remote, tiers, promised(remote)))


def _gate_check(remote: Remote, tiers: Sequence[Tier], promised: ClaimSet | None) -> Check:
    subject = f"gate {','.join(map(str, tiers))}"
    try:
        verdicts = [proof.verdict for proof in remote.proofs]
    except UserError as error:
        return Check(subject=subject, status=Status.FAIL, reason=str(error.problems[0].cause))
    reasons = gate.refusals(verdicts, tiers, promised)
    unknown = "" if promised else " (matrix.yaml is of another revision: compared with the proof's own claims alone)"
    passed = sum(len(verdict.of(Status.PASS)) for verdict in verdicts)
    if reasons:
        return Check(subject=subject, status=Status.FAIL, reason="; ".join(reasons))
    return Check(subject=subject, status=Status.PASS, reason=f"{passed} claims PASS{unknown}")


def checks(remote: Remote) -> tuple[Check, ...]:
    """Attachments against the image, and the image's labels against what was measured. Pure."""
    missing = [name for kind, name in KINDS.items() if not remote.of(kind)]
    there = ", ".join(f"{len(remote.of(kind))} {name}" for kind, name in KINDS.items())
    attached = _check("attachments", [f"there is no {name}" for name in missing], f"{there}; every digest fits")
    if missing:
        return (attached,)
    try:
        verdicts = [proof.verdict for proof in remote.proofs]
    except UserError as error:
        return (attached, Check(subject="proof", status=Status.FAIL, reason=error.problems[0].cause))
    return (
        attached,
        _check("proof", [], f"of this very image ({remote.image_id[:19]}); the verdict is what the evidence says"),
        _check("labels", gate.label_faults(remote.labels, verdicts), "what was measured in the image"),
        _check("SBOM", _sbom_faults(remote), "has every pin of the label, in its version"),
        _check("provenance", _provenance_faults(remote), "of this digest, matrix revision and base"),
    )


def _check(subject: str, faults: Sequence[str], fine: str) -> Check:
    return Check(subject=subject, status=Status.FAIL if faults else Status.PASS, reason="; ".join(faults) or fine)


def _sbom_faults(remote: Remote) -> tuple[str, ...]:
    faults: list[str] = []
    for one in remote.of(SBOM):
        for content in one.files.values():
            try:
                faults += gate.sbom_faults(remote.labels, sbom.versions(content))
            except (ValueError, LookupError, TypeError) as error:
                faults.append(f"can't be read: {error}")
    return tuple(faults)


def _provenance_faults(remote: Remote) -> tuple[str, ...]:
    faults: list[str] = []
    for one in remote.of(PROVENANCE):
        for content in one.files.values():
            try:
                found = provenance.read(content)
            except (ValueError, LookupError, TypeError) as error:
                faults.append(f"can't be read: {error}")
                continue
            expected = {
                "digest": remote.manifest.digest,
                "matrix-revision": remote.labels.get(f"{LABELS}.matrix-revision", ""),
                "base-digest": remote.labels.get(f"{LABELS}.base-digest", ""),
            }
            faults += [
                f"it says {key} {found[key] or 'nothing'}, the image {value or 'nothing'}"
                for key, value in expected.items()
                if found[key] != value
            ]
    return tuple(faults)


# --- small things ---------------------------------------------------------------------------------------------------


def _standing(digest: str, labels: Mapping[str, str], created: str, where: str) -> Standing:
    found = Standing.of(digest, labels, created)
    if found is None or not found.name:
        cause = f"has no readable label {LABELS}.image and {LABELS}.torch"
        raise UserError(Problem(where=where, cause=cause, then="build it with `nox -s build`"))
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
