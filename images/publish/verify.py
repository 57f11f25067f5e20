"""Check published images: signatures, statements, SBOM, provenance, tag, and the gate."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from images.config.names import ImageName
from images.config.platforms import Platform
from images.context.labels import LABELS
from images.errors import Problem, UserError, failed
from images.publish import attachments, provenance, sbom, signing, statements, tags
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy, cause_and_step, find_failures
from images.publish.statements import CYCLONEDX, NAMES, PROVENANCE
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, is_digest
from validate.judge import judge
from validate.judging import Status, listed, plural

ITS_MATRIX = "verify it in the folder of the matrix.yaml that built it (--matrix)"
"""The next step where no matrix here knows the image."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check of a published image."""

    subject: str
    """What was checked: `signature`, say, or `linux/arm64 SBOM` for an image of an index."""
    status: Status
    reason: str

    @classmethod
    def of(cls, subject: str, faults: Sequence[str], *, passed: str = "") -> Self:
        """Return FAIL with the faults as the reason or, without faults, PASS with `passed`."""
        if faults:
            return cls(subject=subject, status=Status.FAIL, reason="; ".join(faults))
        return cls(subject=subject, status=Status.PASS, reason=passed)


# --- the whole: a tag or digest in a registry -----------------------------------------------------


def verify(
    reference: Reference, policy: ReleasePolicy, *, key: str = "", unsigned: bool = False
) -> tuple[str, list[Check]]:
    """Check an image or index in a registry. Return `HOST/NAME@sha256:...` of it, and the results.

    A check that fails is a result, not an exception. `policy` says what the matrix requires of a
    published image. `key` names a public key of cosign: only what it signed counts. Without one
    (empty), all attached statements count, and the signature is UNPROVEN, unless `unsigned` says
    that it need not be checked. Raises UserError if there is no such image or key, or no access.
    """
    if key:
        signing.require_key(key)
    with Registry(reference.repository) as source:
        manifest = source.get(reference.identifier)
        images = attachments.load_all(source, manifest)
        # A reference by digest has no tag to check.
        tag_checks: list[Check] = []
        if not is_digest(reference.identifier):
            tag_checks = [check_tag(source, reference.identifier, manifest, images, policy, key)]

    results: list[Check] = []
    if manifest.is_index:
        results.append(check_index(manifest, images))
    for image in images:
        # The images of an index share one list of results: their platform tells them apart.
        prefix = f"{image.platform} " if manifest.is_index else ""
        for check in check_image(image, policy, key, unsigned=unsigned):
            results.append(replace(check, subject=f"{prefix}{check.subject}"))
    results += tag_checks
    return f"{reference.repository}@{manifest.digest}", results


def check_image(
    image: PublishedImage, policy: ReleasePolicy, key: str, *, unsigned: bool
) -> list[Check]:
    """Check the signatures and statements of an image, and whether they open the gate.

    The gate is what `policy` requires to have passed. `key` names a public key; empty: no signature
    is checked, which is UNPROVEN unless `unsigned` allows it. If the key signed all that is needed,
    only what it signed is checked further; otherwise, everything that is attached.
    """
    results = []
    if key:
        signature_check, image = check_signatures(image, key)
        results.append(signature_check)
    elif not unsigned:
        reason = "not checked: give --key cosign.pub, or say --unsigned"
        results.append(Check(subject="signature", status=Status.UNPROVEN, reason=reason))
    results += check_statements(image)
    results.append(check_gate(image, policy, key))
    return results


def check_signatures(image: PublishedImage, key: str) -> tuple[Check, PublishedImage]:
    """Check that a public key signed a statement of each type: test result, provenance and SBOM.

    Return the result and, if it is PASS, the image without statements that the key did not sign;
    otherwise the image as it is.
    """
    try:
        trusted = attachments.drop_untrusted(image, key)
    except UserError as error:
        # cosign could not tell who signed. That is a FAIL, too, and the other checks go on.
        return Check.of("signature", [error.problems[0].cause]), image

    faults = []
    for predicate_type, name in NAMES.items():
        if not trusted.statements_of(predicate_type):
            faults.append(f"the key signed no {name}")
    # Statements that others attached are no fault.
    passed = f"signed with the key: {plural(len(trusted.statements), 'attachment')}"
    ignored = len(image.statements) - len(trusted.statements)
    if ignored:
        passed += f"; not signed with it, and ignored: {ignored}"
    check = Check.of("signature", faults, passed=passed)
    return check, image if faults else trusted


def check_gate(image: PublishedImage, policy: ReleasePolicy, key: str) -> Check:
    """Check that a published image passed the tests that the policy requires (its gate).

    The validation runs that are attached to the image are judged by what matrix.yaml claims of it
    today. Where there is no matrix.yaml, they are judged by the claims that are attached with them.
    Anybody could have attached those: without the publisher's public key (`key` is empty), the
    result is then UNPROVEN instead of PASS. It is UNPROVEN, too, if the matrix.yaml here does not
    make this image, if the image has no current lock here, or if nothing says which tiers must have
    passed and not all of them did. An image whose runs failed by their own claims is FAIL in every
    case.
    """
    subject = f"gate {','.join(policy.gate)}"
    try:
        # In this order: `evidence` raises UserError for a test result that cannot be read.
        evidence = image.evidence
        exception = image.origin_exception
        # What failed by the claims of its own day is broken, whatever another matrix asks for.
        failures = find_failures([judge(run.claim_set, run) for run in evidence])
    except UserError as error:
        return Check.of(subject, [error.problems[0].cause])
    try:
        is_of_other_matrix = not failures and not policy.makes(image.labels, evidence)
    except UserError as error:
        # Nothing is known against the image: its claims of today can't be written, for lack of a
        # lock, say.
        reason = cause_and_step(error.problems[0])
        return Check(subject=subject, status=Status.UNPROVEN, reason=reason)
    if is_of_other_matrix:
        reason = f"matrix.yaml makes no image with the labels of this one: {ITS_MATRIX}"
        return Check(subject=subject, status=Status.UNPROVEN, reason=reason)
    refusals = policy.refusals(image.labels, evidence, policy.gate, origin_exception=exception)
    if refusals and policy.gate_is_assumed and not failures:
        reason = (
            "no matrix.yaml is here that says which tiers must have passed: give --gate "
            f"static,cpu, say, or {ITS_MATRIX} (for {','.join(policy.gate)}: "
            f"{'; '.join(refusals)})"
        )
        return Check(subject="gate", status=Status.UNPROVEN, reason=reason)
    if refusals:
        return Check.of(subject, refusals)

    if not policy.without_matrix:
        judged_by = "today's matrix"
    elif key:
        judged_by = "the attestation's own claims, for which the key stands: no matrix.yaml is here"
    else:
        reason = (
            "no matrix.yaml is here, and no key stands for the claims of the attestation: give "
            f"--key cosign.pub, or {ITS_MATRIX}"
        )
        return Check(subject=subject, status=Status.UNPROVEN, reason=reason)
    passed = f"judged by {judged_by}"
    # The publisher's reason to publish although it is not proved where the layers come from. It
    # stays attached when the layers are recorded later: then the gate is open without it.
    if exception and policy.refusals(image.labels, evidence, policy.gate):
        passed += f"; the origin of its layers is UNPROVEN, by an exception: {exception}"
    return Check.of(subject, [], passed=passed)


def check_tag(
    source: Registry,
    tag: str,
    manifest: Manifest,
    images: Sequence[PublishedImage],
    policy: ReleasePolicy,
    key: str,
) -> Check:
    """Check whether a tag should name the manifest that it names.

    `images` is the image of this manifest, or the images of the index, linux/amd64 first. With a
    public key, the key must have signed the tag. Without a matrix, only a signature shows which
    aliases an image has: then the result is UNPROVEN without a key (empty). Raises UserError where
    cosign or the registry fails.
    """
    faults = find_tag_faults(source, tag, manifest, images, policy, key)
    if policy.without_matrix and not key and not faults:
        reason = "no matrix.yaml is here that tells aliases, and no key that signed the tag"
        return Check(subject="tag", status=Status.UNPROVEN, reason=reason)
    return Check.of("tag", faults, passed=f"{tag} is to name {manifest.digest[:19]}")


def find_tag_faults(
    source: Registry,
    tag: str,
    manifest: Manifest,
    images: Sequence[PublishedImage],
    policy: ReleasePolicy,
    key: str,
) -> list[str]:
    """Return why a tag should not name the manifest that it names; empty if it should.

    It must be the image's name, its dated tag or one of its aliases. With a public key, the key
    must also have signed the tag, and last for this manifest. `images` is the image, or the images
    of an index, linux/amd64 first. Raises UserError where cosign or the registry fails.
    """
    try:
        versions = [tags.version_of(image) for image in images]
    except UserError as error:
        return [error.problems[0].cause]

    # The tags that `publish` gives it. An index shares the name of its first image, which is that
    # for linux/amd64, and has the date of its newest one.
    name = versions[0].name
    newest = max(version.created for version in versions)
    image_id = manifest.digest if manifest.is_index else images[0].image_id
    dated_tag = tags.immutable_tag(name, newest, image_id)
    own_tags = [name, dated_tag, *policy.aliases_of(name)]

    # Without a matrix, the image's aliases are unknown: any other tag may be one, and only the
    # signature below shows whether it is.
    may_be_alias = policy.without_matrix
    # `sha256:` and twelve digits are enough for a message.
    short = manifest.digest[:19]
    if tag not in own_tags and not may_be_alias:
        return [f"{tag} names {name} ({short}), whose tags are {listed(own_tags, limit=5)}"]

    # The last signature for this tag decides what it should name.
    if not key:
        return []
    last = attachments.find_last_signature(source, key, tag)
    if last is None:
        return [f"{tag} names {name} ({short}), which the key did not sign for it"]
    if last.digest != manifest.digest:
        signed = f"the key last signed that it shall name {last.digest[:19]} ({last.date})"
        return [f"the tag {tag} names {short}, but {signed}"]
    return []


# --- what must hold before an image is published or promoted --------------------------------------


def require_publishable(image: PublishedImage, policy: ReleasePolicy, key: str) -> PublishedImage:
    """Return the image without untrusted statements. Raise UserError if `verify` would not pass it.

    With a public key, only statements that it signed are trusted; without one (empty), all are. The
    trusted statements must be true of the image, and the validation runs among them must have
    passed all that `policy` requires.
    """
    trusted = attachments.drop_untrusted(image, key)
    if key and not trusted.statements:
        cause = "nothing that is attached to this image is signed with the key of --key"
        then = (
            "give --key the public key of whoever published the image; if this is that key, don't "
            "use the image"
        )
        raise failed(image.reference, cause, then)

    # A signature shows who stated something, not that it is true of this image: compare the
    # statements with the image, then the validation runs with the policy.
    require_sound(trusted)
    policy.require_open(
        image.reference,
        image.labels,
        trusted.evidence,
        origin_exception=trusted.origin_exception,
    )
    return trusted


def require_sound(image: PublishedImage) -> None:
    """Raise UserError with every check of the attached statements that does not pass.

    The statements are test results, provenance and SBOM: `check_statements` says how they are
    checked.
    """
    remove = f"`cosign clean --type attestation {image.reference}`"
    then = (
        f"remove the attestations that others attached ({remove}) and publish the image anew; or "
        "publish with --key, so that only what that key signed counts"
    )
    problems = []
    for check in check_statements(image):
        if check.status is not Status.PASS:
            cause = f"{check.subject}: {check.reason}"
            problems.append(Problem(where=image.reference, cause=cause, then=then))
    if problems:
        raise UserError(problems, code=1)


# --- statements against the image -----------------------------------------------------------------


def check_statements(image: PublishedImage) -> tuple[Check, ...]:
    """Check the statements attached to an image against the image and its labels.

    Returns a result for each step: whether there is a statement of each type, then the test
    results, SBOMs and provenances. The first two steps end the checks if they fail. Whether the
    labels themselves are true is a claim of the validation (`image/labels`).
    """
    missing = []
    counts = []
    for predicate_type, name in NAMES.items():
        count = len(image.statements_of(predicate_type))
        counts.append(f"{count} {name}")
        if not count:
            missing.append(f"there is no {name}")
    attached = Check.of("attachments", missing, passed=", ".join(counts))
    if missing:
        return (attached,)

    # Reading the property judges every attached run. It raises UserError for a test result that is
    # malformed, of another image, or not what its evidence says.
    try:
        _ = image.attestations
    except UserError as error:
        return (attached, Check.of("attestation", [error.problems[0].cause]))
    of_image = (
        f"of this very image ({image.image_id[:19]}); the test result says what the evidence says"
    )
    return (
        attached,
        Check(subject="attestation", status=Status.PASS, reason=of_image),
        Check.of(
            "SBOM",
            find_statement_faults(image, CYCLONEDX),
            passed="has every pin of the label, in its version",
        ),
        Check.of(
            "provenance",
            find_statement_faults(image, PROVENANCE),
            passed="of this digest, matrix revision and base",
        ),
    )


def find_statement_faults(image: PublishedImage, predicate_type: str) -> list[str]:
    """Return where the SBOMs or provenances of an image contradict its digest or its labels.

    `predicate_type` is CYCLONEDX or PROVENANCE: which of the two to look at. A statement that
    cannot be read is a fault, too. Empty if there is no fault.
    """
    faults: list[str] = []
    for statement in image.statements_of(predicate_type):
        # `subjects` are the digests of the images that a statement says it is about.
        if image.manifest.digest not in statement.subjects:
            subjects = ", ".join(sorted(statement.subjects))
            faults.append(f"is of {subjects}, the image is {image.manifest.digest}")
        try:
            if predicate_type == CYCLONEDX:
                faults += find_sbom_faults(statement.predicate, image.labels)
            else:
                faults += find_provenance_faults(statement.predicate, image.labels)
        except statements.UNREADABLE as error:
            faults.append(f"can't be read: {type(error).__name__}: {error}")
    # Several statements may have the same fault.
    return list(dict.fromkeys(faults))


def find_sbom_faults(predicate: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Return a sentence for each package in the label `pins` that an SBOM contradicts.

    That is a package that the SBOM (`predicate`, in CycloneDX's form) lacks or has in another
    version. Raises one of `statements.UNREADABLE` for an SBOM or a label of another form.
    """
    # The label is a JSON object: package -> version without a local part (`+cu126`), as
    # `read_versions` gives them.
    pins = dict(json.loads(labels.get(f"{LABELS}.pins") or "{}"))
    versions = sbom.read_versions(predicate)
    faults = []
    for name, version in sorted(pins.items()):
        if versions.get(name) != version:
            listed_version = versions.get(name, "none")
            faults.append(
                f"the image's label names {name} {version}, and its SBOM has {listed_version}"
            )
    return faults


def find_provenance_faults(predicate: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Return where a provenance names another matrix revision or base image than the labels do.

    `predicate` is the content of the provenance (SLSA). Raises one of `statements.UNREADABLE` if it
    has another form.
    """
    faults = []
    # `read_labels` gives the last part of each label's name and the value that it should have.
    for key, value in provenance.read_labels(predicate).items():
        label = labels.get(f"{LABELS}.{key}", "")
        if value != label:
            faults.append(f"it says {key} {value or 'nothing'}, the image {label or 'nothing'}")
    return faults


# --- indexes --------------------------------------------------------------------------------------


def check_index(manifest: Manifest, images: Sequence[PublishedImage]) -> Check:
    """Check an index against the images that it lists, which come in the same order.

    An index is the manifest that lists an image for each of several platforms. It must list one
    for each, all from one row of the matrix, and one of them for linux/amd64.
    """
    platforms = [entry.platform for entry in manifest.manifests]
    faults = []
    for platform in sorted(set(platforms)):
        if platforms.count(platform) > 1:
            faults.append(f"two images are for {platform}")

    # Docker pulls by the platform that the index lists, so it must be the image's own.
    for platform, image in zip(platforms, images, strict=True):
        if platform != image.platform:
            faults.append(
                f"this index lists {image.manifest.digest[:19]} for {platform or 'no platform'}, "
                f"and that image is for {image.platform or 'none'}"
            )

    # `row_name` is empty for an image without a readable name, which belongs to no row.
    rows = {row_name(image) for image in images}
    if len(rows) > 1 or "" in rows:
        names = ", ".join(image.name or "nothing" for image in images)
        faults.append(f"its images are not one row of the matrix: they are called {names}")
    if Platform.AMD64 not in [image.platform for image in images]:
        faults.append(f"the index has no image for {Platform.AMD64}")

    row = ", ".join(sorted(rows))
    passed = f"of {row}: {', '.join(platforms)}, each as it is labelled"
    return Check.of("index", faults, passed=passed)


def row_name(image: PublishedImage) -> str:
    """Return the name of an image's row in the matrix: `cu130-torch213` of `cu130-torch213-arm64`.

    Empty if the name in its label cannot be read or is for another platform than the image.
    """
    try:
        name = ImageName.parse(image.name)
    except UserError:
        return ""
    if name.platform != image.platform:
        return ""
    # A row has the name of its image for linux/amd64, which is written without a platform.
    return str(replace(name, platform=Platform.AMD64))
