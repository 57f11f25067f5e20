"""Measures what the engine tells of an image: configuration, build steps and stored layers.

No process of the image runs.
"""

import json
import time
from collections.abc import Iterator, Sequence

from images.engine import Engine, ImageInfo, exported, layers
from validate.checks.static.host_image import (
    Credential,
    ImageEvidence,
    LayersEvidence,
    WastedFiles,
)
from validate.claims import HOST_PROBE, ClaimSet
from validate.environment import credentials
from validate.evidence import Measurement, Outcome, Record

LEAST_WASTED = 1_000_000
"""Bytes from which on a step is named that makes files travel for nothing."""
_MOST_LISTED = 40
"""Hidden files that evidence lists at most."""


def measure_image(engine: Engine, image: ImageInfo, claims: ClaimSet) -> Sequence[Record]:
    """Return one record with what was measured for the claims `image/...` about an image.

    Such a claim is about what the engine tells of the image, without a container: `image/layers`
    about its layers, all others about its settings. The result is empty if `claims` has none of
    them. Raises EngineError, or NoSuchImage, which is one.
    """
    image_claims = claims.measured_by([HOST_PROBE]).claims
    if not image_claims:
        return ()
    started = time.monotonic()
    # For this, the engine reads no layer.
    settings = settings_evidence(engine, image)
    evidence: dict[str, ImageEvidence | LayersEvidence] = {}
    for claim in image_claims:
        if claim.subject not in ("layers", "bytes"):
            evidence[claim.subject] = settings
        # Reading all layers takes a while. Leave it out for a claim that is unproven anyway.
        elif not claim.unproven:
            evidence[claim.subject] = layers_evidence(engine, image)

    # All claims share what was read, so the time of each is that of all.
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
    """Return an image's labels, size and settings, and the credentials that its texts hold.

    `driver` has the variables that tell NVIDIA's container runtime what to attach, `further` the
    settings that our own images do not have, such as exposed ports. `secrets` says where
    credentials (tokens, passwords) stand, and of what kind they are. Raises EngineError.
    """
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
    """Return the files in an image's layers that no container shows, as upper layers hide them.

    Whoever pulls the image gets them all the same. `hidden`: their paths. `secrets`: which of them
    hold credentials (tokens, passwords), and of what kind. If the layers can't be read, the
    evidence has only the reason (`unread`). `wasted`: the build steps that copy or remove files of
    lower layers, so that a pull downloads bytes in vain. Raises EngineError if a layer is damaged.
    """
    # This is None if the engine's store of layers can't be read from here.
    hidden_files = exported.read_hidden_files(engine, image)
    if hidden_files is None:
        return {"unread": layers.why_unreadable(engine, image)}
    # The keys of a dict, so that each path and kind stands once, in the order in which they were
    # found: a file may have many credentials of one kind, and several layers the same file.
    secrets: dict[tuple[str, str], None] = {}
    for _layer, path, content in hidden_files.files:
        for _line, kind in credentials.find_in_file(content, path):
            secrets[path, kind] = None
    # Files of layer 0 are the base's and are not listed; credentials in them count all the same.
    hidden = [f"/{path}" for layer, path, _content in hidden_files.files if layer > 0]
    return {
        "files": hidden_files.entry_count,  # the entries of all layers, hidden or not
        "hidden": hidden[:_MOST_LISTED],
        "secrets": [{"path": f"/{path}", "kind": kind} for path, kind in secrets],
        "wasted": wasted_evidence(engine, image),
    }


def wasted_evidence(engine: Engine, image: ImageInfo) -> list[WastedFiles]:
    """Return the build steps for which a pull downloads bytes in vain, those with most bytes first.

    A step copies files of a lower layer unchanged into its own, or removes them.

    Steps below LEAST_WASTED bytes are left out: each image has a few files that a later step
    touches. Raises EngineError if a layer is damaged.
    """
    rows: list[WastedFiles] = []
    for row in exported.find_wasted_bytes(engine, image) or ():
        if row.bytes < LEAST_WASTED:
            continue
        rows.append(
            {
                "step": name_step(row.step),
                "layer": row.layer,
                "how": "copied" if row.how == "copied" else "removed",
                "files": row.files,
                "bytes": row.bytes,
                "largest": f"/{row.largest}",
            }
        )
    return sorted(rows, key=lambda row: row["bytes"], reverse=True)


def find_credentials(engine: Engine, image: ImageInfo) -> list[Credential]:
    """Return place and kind of each credential in an image's configuration.

    The credential itself is left out, as evidence is published.
    """
    places: list[Credential] = []
    for place, text in texts_of_configuration(engine, image):
        for _line, kind in credentials.find_in_text(text):
            places.append({"where": place, "kind": kind})
    return places


def name_step(step: str) -> str:
    """Return the beginning of a build step, by which evidence names it.

    A step holds the values of its build arguments (`RUN |1 TOKEN=...`): they may be secret. So the
    name ends before the first `=`.
    """
    return step[:80].split("=")[0]


def texts_of_configuration(engine: Engine, image: ImageInfo) -> Iterator[tuple[str, str]]:
    """Yield every text that whoever pulls an image can read in its configuration.

    Each comes as a pair: where it stands (`the label NAME`), and the text. The texts are those of
    variables, labels, build steps and all other settings. Raises EngineError.
    """
    for name, value in image.env.items():
        yield f"the variable {name}", f"{name}={value}"
    for name, value in image.labels.items():
        yield f"the label {name}", value
    for step, _ in engine.history(image.handle):
        yield f"the build step `{name_step(step)}`", step
    for name, value in engine.inspect_raw(image.handle)["Config"].items():
        # The variables and labels were yielded above.
        if name not in ("Env", "Labels"):
            yield f"{name} of its configuration", json.dumps(value)
