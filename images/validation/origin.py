"""Measures the layers of an image for the claim about its origin.

What the claim compares them with is in validate/checks/static/host_origin.py.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, configuration
from images.engine.layers import LayerReading
from images.host.hashing import oci_digest
from validate.checks.static.host_origin import (
    SETTINGS_ROW,
    MeasuredLayer,
    OriginEvidence,
    StepChange,
    concerns_our_tools,
)
from validate.claims import ORIGIN_PROBE, ClaimSet
from validate.evidence import Measurement, Outcome, Record

_MOST_LISTED = 40
_BASE = "base"


def known_forms(claims: ClaimSet) -> dict[str, str]:
    """Return each known digest of a recorded layer -> the one digest by which layers are compared.

    A layer has several digests, because engines write the same files into different archives
    (`written_as`). Layers are compared by the digest of their files in our own form, called
    canonical. The recorded layers are those in the claims about the image's origin; without such
    claims, the result is empty.
    """
    canonical_of: dict[str, str] = {}
    for claim in claims.measured_by([ORIGIN_PROBE]).claims:
        for layer in claim.expect["layers"]:
            # The last row is no layer: it stands for the image's settings.
            if layer["layer"] == SETTINGS_ROW:
                continue
            # The diff ID is empty if no build of this layer is recorded.
            canonical = layer["diff_id"]
            if not canonical:
                continue
            for digest in (canonical, *layer["written_as"]):
                canonical_of[digest] = canonical
    return canonical_of


def measure_origin(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    layer_reading: LayerReading,
    steps_above: Sequence[str],
) -> Sequence[Record]:
    """Measure where an image's layers come from, and return one record of it.

    The record is for the claims that the layers have the bytes of recorded builds; if `claims` has
    none of these, nothing is returned. `layer_reading` has the layers, as read from the engine.
    `steps_above` are the build steps that a user's image has on top of ours, the first one first;
    empty for our own images. Raises EngineError if the engine can't be asked.
    """
    origin_claims = claims.measured_by([ORIGIN_PROBE]).claims
    if not origin_claims:
        return ()
    started = time.monotonic()
    layers = []
    for name, diff_id in with_one_base(layer_reading.payload).items():
        layers.append(MeasuredLayer(layer=name, diff_id=diff_id))
    evidence = OriginEvidence(
        recipe=image.labels.get(f"{LABELS}.recipe", ""),
        layers=layers,
        canonical=layer_reading.canonical,  # whether the engine's store of layers could be read
        beside_suite=list(layer_reading.beside_suite[:_MOST_LISTED]),
        changes=changes_above(engine, image, steps_above),
    )
    if layer_reading.why_unread:
        evidence["unread"] = layer_reading.why_unread

    # The claims share one measurement, and so its time.
    seconds = round(time.monotonic() - started, 3)
    measurements = []
    for claim in origin_claims:
        measurements.append(
            Measurement(subject=claim.subject, seconds=seconds, evidence={**evidence})
        )
    record = Record(
        probe=ORIGIN_PROBE,
        outcome=Outcome.COMPLETED,
        seconds=seconds,
        measurements=tuple(measurements),
    )
    return (record,)


def with_one_base(payload: Mapping[str, str]) -> dict[str, str]:
    """Return the layers of an image with those of its base as one layer, `base`.

    `payload`: name of a layer -> its diff ID (digest), the lowest first. A base from a registry may
    have several layers: `base`, `base-2` and so on. In the result, one `base` stands for them, with
    the digest of their diff IDs; all other layers stay as they are.
    """
    base_diff_ids = []
    other_layers = {}
    for name, diff_id in payload.items():
        # `base-2` is the second layer of the base. No other layer's name begins like this.
        if name.partition("-")[0] == _BASE:
            base_diff_ids.append(diff_id)
        else:
            other_layers[name] = diff_id

    if not base_diff_ids:
        return other_layers
    if len(base_diff_ids) == 1:
        return {_BASE: base_diff_ids[0], **other_layers}
    return {_BASE: oci_digest(" ".join(base_diff_ids).encode()), **other_layers}


def changes_above(engine: Engine, image: ImageInfo, steps_above: Sequence[str]) -> list[StepChange]:
    """Return which files of the image below each step of a derived image replaced or removed.

    A derived image is a user's, built on one of ours; `steps_above` are the steps of its build, the
    first one first. A step that only added files is left out. The list is also empty if the
    engine's store can't be read here; the evidence shows that as `canonical`: False. Raises
    EngineError if a layer is damaged.
    """
    # Steps such as ENV change the configuration alone and have no layer. The text of the others is
    # taken without the words that only some builders add (`normal_step`).
    steps = [
        configuration.normal_step(text) for text in steps_above if configuration.has_layer(text)
    ]
    if not steps:
        return []
    # Imported here, because most images are not derived.
    from images.engine import derived, exported

    layers = exported.entries(engine, image)
    if layers is None:
        return []
    # Each of the steps made one layer; all layers below those are our image's.
    layers_below = len(image.layers) - len(steps)
    changes = []
    for change in derived.changes_by_step(layers, layers_below, steps):
        changes.append(
            # The paths are cut to those that evidence lists; `count` counts all.
            StepChange(
                step=change.step,
                replaced={path: change.replaced[path] for path in first_paths(change.replaced)},
                removed=first_paths(change.removed),
                count=len(change.replaced) + len(change.removed),
            )
        )
    return changes


def first_paths(paths: Iterable[str]) -> list[str]:
    """Return as many paths as evidence lists. Those that its judge looks for come first."""
    of_our_tools = []
    others = []
    for path in paths:
        if concerns_our_tools(path):
            of_our_tools.append(path)
        else:
            others.append(path)
    ordered = [*of_our_tools, *others]
    return ordered[:_MOST_LISTED]


def origin_changes(records: Sequence[Record]) -> list[StepChange] | None:
    """Return the changes of a derived image that the record about its origin holds.

    An empty list if no record is about its origin; None if the engine's layers could not be read.
    """
    for record in records:
        if record.probe == ORIGIN_PROBE:
            evidence = record.measurements[0].evidence
            return list(evidence["changes"]) if evidence["canonical"] else None
    return []
