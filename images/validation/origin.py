"""Measures the layers of an image for the claim about its origin (validate/checks/static/host_origin.py)."""

import time
from collections.abc import Mapping, Sequence

from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, configuration
from images.engine.layers import LayerReading
from images.host.hashing import oci_digest
from validate.checks.static.host_origin import MeasuredLayer, OriginEvidence, StepChange
from validate.claims import ORIGIN_PROBE, ClaimSet
from validate.evidence import Measurement, Outcome, Record

_MOST_LISTED = 40
_BASE = "base"


def known_forms(claims: ClaimSet) -> dict[str, str]:
    """Return the diff IDs under which engines keep layers of the record -> their canonical ones."""
    known: dict[str, str] = {}
    for claim in claims.only([ORIGIN_PROBE]).claims:
        for layer in claim.expect["layers"]:
            known |= dict.fromkeys(layer["written_as"], layer["diff_id"])
    return known


def measure_origin(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    read: LayerReading,
    steps_above: Sequence[str],
) -> Sequence[Record]:
    """Return what the layers of an image are; nothing where no claim asks. Raises EngineError.

    `steps_above`: those of a derived image, the first first.
    """
    asked = claims.only([ORIGIN_PROBE]).claims
    if not asked:
        return ()
    started = time.monotonic()
    evidence = OriginEvidence(
        recipe=image.labels.get(f"{LABELS}.recipe", ""),
        layers=[
            MeasuredLayer(layer=name, diff_id=diff_id)
            for name, diff_id in with_one_base(read.payload).items()
        ],
        canonical=read.canonical,
        beside_suite=list(read.beside_suite[:_MOST_LISTED]),
        changes=changes_above(engine, image, steps_above),
    )
    seconds = round(time.monotonic() - started, 3)
    measured = tuple(
        Measurement(subject=claim.subject, seconds=seconds, evidence={**evidence})
        for claim in asked
    )
    return (
        Record(
            probe=ORIGIN_PROBE, outcome=Outcome.COMPLETED, seconds=seconds, measurements=measured
        ),
    )


def with_one_base(payload: Mapping[str, str]) -> dict[str, str]:
    """Return a payload with the layers of the base as one: a base from a registry may have several."""
    of_base = [diff_id for name, diff_id in payload.items() if name.partition("-")[0] == _BASE]
    others = {name: diff_id for name, diff_id in payload.items() if name.partition("-")[0] != _BASE}
    if not of_base:
        return others
    return {
        _BASE: of_base[0] if len(of_base) == 1 else oci_digest(" ".join(of_base).encode()),
        **others,
    }


def changes_above(engine: Engine, image: ImageInfo, steps_above: Sequence[str]) -> list[StepChange]:
    """Return what the steps of a derived image replaced and removed of the files of the image below.

    Nothing where the engine's store can't be read here: then the evidence is not `canonical`.
    """
    steps = [configuration.step(text) for text in steps_above if not configuration.empty(text)]
    if not steps:
        return []
    from images.engine import derived, exported  # most images are not derived

    layers = exported.entries(engine, image)
    if layers is None:
        return []
    found = derived.changes_by_step(layers, len(image.layers) - len(steps), steps)
    return [
        StepChange(
            step=change.step,
            replaced=dict(list(change.replaced.items())[:_MOST_LISTED]),
            removed=list(change.removed[:_MOST_LISTED]),
            count=len(change.replaced) + len(change.removed),
        )
        for change in found
    ]


def origin_changes(records: Sequence[Record]) -> list[StepChange] | None:
    """Return the changes of a derived image from the records of its validation run. None: they could not be read."""
    for record in records:
        if record.probe == ORIGIN_PROBE:
            evidence = record.measurements[0].evidence
            return list(evidence["changes"]) if evidence["canonical"] else None
    return []
