"""What a published image says of itself, against what was measured in it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.context.labels import LABELS
from images.errors import Problem, UserError
from images.publish import provenance, sbom
from images.publish.attachments import NAMES, PROVENANCE, SBOM, PublishedImage
from images.publish.text import listed
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

_VERSION_LABELS = (
    ("torch", "S1", "torch", "version"),
    ("wheel-cuda", "S1", "torch", "cuda"),
    ("python", "S1", "torch", "python"),
    ("toolkit-cuda", "S6", "toolkit", "version"),
)
"""Label, claim, subject, and the key of the claim's `expect` that has the label's value."""
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What JSON of another form raises where it is read: whoever may push may attach anything."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was checked."""

    subject: str
    status: Status
    reason: str

    @classmethod
    def of(cls, subject: str, faults: Sequence[str], passed: str) -> Check:
        """FAIL with the faults, or PASS with the reason `passed`."""
        return cls(subject=subject, status=Status.FAIL if faults else Status.PASS, reason="; ".join(faults) or passed)


def checks(image: PublishedImage) -> tuple[Check, ...]:
    """Attachments against the image, and the image's labels against what was measured."""
    missing = [name for kind, name in NAMES.items() if not image.of(kind)]
    counts = ", ".join(f"{len(image.of(kind))} {name}" for kind, name in NAMES.items())
    attached = Check.of("attachments", [f"there is no {name}" for name in missing], f"{counts}; every digest fits")
    if missing:
        return (attached,)
    try:
        verdicts = [one.verdict for one in image.attestations]
    except UserError as error:
        return (attached, Check.of("attestation", [error.problems[0].cause], ""))
    of_image = f"of this very image ({image.image_id[:19]}); the verdict is what the evidence says"
    return (
        attached,
        Check.of("attestation", [], of_image),
        Check.of("labels", label_faults(image.labels, verdicts), "what was measured in the image"),
        Check.of("SBOM", _sbom_faults(image), "has every pin of the label, in its version"),
        Check.of("provenance", _provenance_faults(image), "of this digest, matrix revision and base"),
    )


def require_sound(image: PublishedImage) -> None:
    """Raises UserError with every check that does not pass."""
    failed = [check for check in checks(image) if check.status is not Status.PASS]
    if failed:
        remove = f"`oras discover {image.reference}`, `oras manifest delete`"
        then = f"publish it anew; remove what others attached ({remove}), or publish with --key"
        causes = [f"{check.subject}: {check.reason}" for check in failed]
        raise UserError([Problem(where=image.reference, cause=cause, then=then) for cause in causes], code=1)


def label_faults(labels: Mapping[str, str], verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Where an image's labels are not what was measured in it."""
    rows = [one for verdict in verdicts for one in verdict.claims]
    faults = [f"the image is called {one.image}" for one in verdicts if one.image != _label(labels, "image")]
    try:
        pins = _pins(labels)
    except (ValueError, TypeError):
        return (*faults, "the label of pins can't be read")
    measured = {one.claim.subject: _measured(one) for one in rows if one.claim.id == "S1" and _measured(one)}
    faults += [
        f"{name} {version} is labelled, {measured.get(name, 'nothing')} was found"
        for name, version in sorted(pins.items())
        if measured.get(name) != version
    ]
    for key, claim_id, subject, expected in _VERSION_LABELS:
        validated = {
            str(one.claim.expect.get(expected))
            for one in rows
            if (one.claim.id, one.claim.subject, one.status) == (claim_id, subject, Status.PASS)
        }
        if validated and validated != {_label(labels, key)}:
            faults.append(f"{key} {_label(labels, key)} is labelled, {listed(sorted(validated))} was validated")
    return tuple(dict.fromkeys(faults))


def sbom_faults(labels: Mapping[str, str], versions: Mapping[str, str]) -> tuple[str, ...]:
    """Where an image's label of pins is not what its SBOM lists (canonical name -> version)."""
    try:
        pins = _pins(labels)
    except (ValueError, TypeError):
        return ("the label of pins can't be read",)
    return tuple(
        f"{name} {version} is labelled, the SBOM has {versions.get(name, 'none')}"
        for name, version in sorted(pins.items())
        if versions.get(name) != version
    )


def unlisted(versions: Mapping[str, str], verdict: Verdict) -> tuple[str, ...]:
    """Distributions that the evidence measured (S10), and that a list of packages has not, or not so.

    `versions`: canonical name -> version without its local part, as `sbom.versions` has them.
    """
    measured = [one.evidence.get("distributions") for one in verdict.claims if one.claim.id == "S10"]
    rows = {name: found for held in measured if isinstance(held, Mapping) for name, found in held.items()}
    wanted = {name: sorted({str(one["version"]) for one in found}) for name, found in rows.items()}
    return tuple(
        f"{name} {listed(were)} was measured, the list of packages has {versions.get(name, 'none')}"
        for name, were in sorted(wanted.items())
        if were and versions.get(name) not in were
    )


def installed(evidence: Mapping[str, Any]) -> str:
    """The version in S1's evidence, as the distribution's metadata has it; empty where it has none."""
    found = evidence.get("installed")
    return str(found[0].get("version", "")) if isinstance(found, list) and found and isinstance(found[0], dict) else ""


def _sbom_faults(image: PublishedImage) -> tuple[str, ...]:
    faults = _not_one_file(image, SBOM)
    for content in _contents(image, SBOM):
        try:
            faults += sbom_faults(image.labels, sbom.versions(content))
        except _UNREADABLE as error:
            faults.append(f"can't be read: {error}")
    return tuple(faults)


def _provenance_faults(image: PublishedImage) -> tuple[str, ...]:
    expected = {
        "digest": image.manifest.digest,
        "matrix-revision": _label(image.labels, "matrix-revision"),
        "base-digest": _label(image.labels, "base-digest"),
    }
    faults = _not_one_file(image, PROVENANCE)
    for content in _contents(image, PROVENANCE):
        try:
            found = provenance.read(content)
        except _UNREADABLE as error:
            faults.append(f"can't be read: {error}")
            continue
        faults += [
            f"it says {key} {found[key] or 'nothing'}, the image {value or 'nothing'}"
            for key, value in expected.items()
            if found[key] != value
        ]
    return tuple(faults)


def _not_one_file(image: PublishedImage, artifact_type: str) -> list[str]:
    attached = image.of(artifact_type)
    return [f"{one.digest[:19]} has {len(one.files)} files, not one" for one in attached if len(one.files) != 1]


def _contents(image: PublishedImage, artifact_type: str) -> list[bytes]:
    return [content for one in image.of(artifact_type) for content in one.files.values()]


def _measured(one: ClaimVerdict) -> str:
    """The version that S1 found of a distribution, without its local part."""
    return installed(one.evidence).partition("+")[0] if one.status is Status.PASS else ""


def _pins(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(json.loads(_label(labels, "pins") or "{}"))


def _label(labels: Mapping[str, str], key: str) -> str:
    return labels.get(f"{LABELS}.{key}", "")
