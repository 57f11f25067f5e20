"""What the engine's host sees of an image: configuration, history and layers. No process of the image runs."""

import json
import time
from collections.abc import Iterator, Sequence

from images.engine import Engine, ImageInfo, exported
from validate.checks.static.host_image import Credential, ImageEvidence, LayersEvidence
from validate.claims import HOST_PROBE, ClaimSet
from validate.environment import credentials
from validate.evidence import Measurement, Outcome, Record

_MOST_LISTED = 40


def measure_image(engine: Engine, image: ImageInfo, claims: ClaimSet) -> Sequence[Record]:
    """Measure the claims about an image as a whole (`image/...`), all in one record; none where no claim asks.

    Raises NoSuchImage, EngineError.
    """
    asked = claims.only([HOST_PROBE]).claims
    if not asked:
        return ()
    started = time.monotonic()
    settings = settings_evidence(engine, image)
    evidence: dict[str, ImageEvidence | LayersEvidence] = {}
    for claim in asked:
        if claim.subject != "layers":
            evidence[claim.subject] = settings
        elif not claim.unproven:
            evidence[claim.subject] = layers_evidence(engine, image)

    # Nobody asks for less than all of it, so that each measurement took the time of all.
    seconds = round(time.monotonic() - started, 3)
    measurements = []
    for subject, measured in evidence.items():
        measurements.append(Measurement(subject=subject, seconds=seconds, evidence=measured))
    record = Record(
        probe=HOST_PROBE,
        outcome=Outcome.COMPLETED,
        seconds=seconds,
        measurements=tuple(measurements),
    )
    return (record,)


def settings_evidence(engine: Engine, image: ImageInfo) -> ImageEvidence:
    """Return what the engine tells of an image: its labels and settings, and credentials in any text."""
    return {
        "labels": dict(image.labels),
        "bytes": image.size,
        "architecture": image.architecture,
        "user": image.user,
        "entrypoint": list(image.entrypoint),
        "further": dict(image.further),
        "driver": {name: value for name, value in image.env.items() if name.startswith("NVIDIA_")},
        "secrets": find_credentials(engine, image),
    }


def layers_evidence(engine: Engine, image: ImageInfo) -> LayersEvidence:
    """Return what of an image's layers is in none of its containers, and travels with it."""
    unseen = exported.unseen(engine, image)
    if unseen is None:
        return {
            "unread": "the layers lie where this user can't read them: ask as root, on the engine's own machine"
        }
    files, count = unseen
    secrets: dict[tuple[str, str], None] = {}
    for _, path, content in files:
        for _, kind in credentials.find_in_file(content, path):
            # A file may have many of one kind, and several layers the same file.
            secrets[path, kind] = None
    return {
        "files": count,
        "hidden": [f"/{path}" for layer, path, _ in files if layer][:_MOST_LISTED],
        "secrets": [{"path": f"/{path}", "kind": kind} for path, kind in secrets],
    }


def find_credentials(engine: Engine, image: ImageInfo) -> list[Credential]:
    """Return kind and place of each credential that an image's configuration holds.

    The text itself is left out, as evidence is published.
    """
    found: list[Credential] = []
    for place, text in texts_of_configuration(engine, image):
        for _, kind in credentials.find_in_text(text):
            found.append({"where": place, "kind": kind})
    return found


def texts_of_configuration(engine: Engine, image: ImageInfo) -> Iterator[tuple[str, str]]:
    """Yield every text that everybody who pulls an image can read in its configuration, each after its place."""
    for name, value in image.env.items():
        yield f"the variable {name}", f"{name}={value}"
    for name, value in image.labels.items():
        yield f"the label {name}", value
    for step, _ in engine.history(image.id):
        # A step has the values of its build arguments: it is named without them.
        yield f"the build step `{step[:80].split('=')[0]}`", step
    for name, value in engine.inspected(image.id)["Config"].items():
        if name not in ("Env", "Labels"):
            yield f"{name} of its configuration", json.dumps(value)
