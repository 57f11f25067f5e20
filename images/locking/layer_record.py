"""Reads and writes locks/layers.json: the digest that each recipe of a layer gave.

Recipes: images/context/recipe.py. Builds never write the record; the verb `reproduce NAME
--record` does. A layer that several images share stands in it once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from images.config import paths
from images.errors import command, wrong
from images.host.cache import write_whole

FILE = "layers.json"
BUILDS_NEEDED = 2
"""So many builds must have given the same bytes: one build proves nothing of the next."""


class Build(BaseModel):
    """A build without cache that gave a layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    """A random ID, so that a build is counted once."""
    image: str
    on: str
    """The engine and its version, or the run of results/runs.jsonl that measured the layers."""
    date: str

    def __str__(self) -> str:
        return f"{self.image} on {self.on}"


class RecordedLayer(BaseModel):
    """The layer that every build of a recipe gave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: str
    """Its name for people. Its key in the record is the recipe."""
    diff_id: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    """Its diff ID in canonical form (images/engine/layers.py). For the settings, their digest."""
    written_as: tuple[str, ...] = ()
    """Other digests of the same files: diff IDs that engines gave them, and change digests
    (images/engine/layers.py), by which stores are compared."""
    builds: tuple[Build, ...]


LayerRecord = Mapping[str, RecordedLayer]
"""Recipe -> the layer."""
_RECORD: TypeAdapter[dict[str, RecordedLayer]] = TypeAdapter(dict[str, RecordedLayer])


class Measured(NamedTuple):
    """A layer that a build gave, with its recipe."""

    layer: str
    recipe: str
    diff_id: str
    """Its diff ID in canonical form, as in `RecordedLayer`."""
    written_as: str
    """The diff ID that the engine of the build gave it."""
    change: str = ""
    """Its change digest; empty if it was not computed."""


def read(locks: Path) -> LayerRecord:
    """Read the record in the folder of locks; empty if there is none.

    It maps a recipe, the hash of what a layer is built from, to the layer that builds of it gave.
    Raises UserError for a damaged file.
    """
    file = locks / FILE
    if not file.is_file():
        return {}
    try:
        return _RECORD.validate_json(file.read_bytes())
    except ValidationError as error:
        cause = f"this record of layers is damaged: {error.errors()[0]['msg']}"
        then = f"restore it from git: `git checkout {paths.shown(file)}`"
        raise wrong(paths.shown(file), cause, then) from None


def known_forms(record: LayerRecord) -> dict[str, str]:
    """Return all digests by which recorded layers are known: digest -> the layer's diff ID.

    That diff ID is in canonical form: the same files have the same one on every engine.
    """
    canonical_of = {}
    for layer in record.values():
        # Rows of settings are no layers, but their digests do no harm here.
        for digest in (layer.diff_id, *layer.written_as):
            canonical_of[digest] = layer.diff_id
    return canonical_of


def layers_of(record: LayerRecord, recipe: str, image: str) -> dict[str, RecordedLayer]:
    """Return the layers that the record has of an image: recipe of a layer -> layer.

    A recipe is a hash of what a layer is built from. `recipe` is that of the whole image, `image`
    is its name. The image's settings, such as its variables, come last, as if they were a layer.

    Empty if the record has no such recipe, too few builds of it, or builds of another image.
    """
    # The settings are recorded under the recipe of the whole image.
    settings = record.get(recipe)
    if settings is None or len(settings.builds) < BUILDS_NEEDED:
        return {}
    if any(build.image != image for build in settings.builds):
        return {}

    # The record does not say which layers belong together. But a build is listed under every layer
    # that it gave: so the image's layers are those that list all builds of its settings.
    builds_of_image = {build.id for build in settings.builds}
    layers = {}
    for layer_recipe, layer in record.items():
        builds_of_layer = {build.id for build in layer.builds}
        if layer_recipe != recipe and builds_of_image <= builds_of_layer:
            layers[layer_recipe] = layer
    layers[recipe] = settings
    return layers


def add(record: LayerRecord, layers: list[Measured], build: Build) -> dict[str, RecordedLayer]:
    """Return a copy of the record, with the layers of one more build added.

    The record maps a recipe, a hash of what a layer is built from, to the layer that builds of it
    gave. `layers` are those that `build` gave. Raises UserError if the build gave other bytes for a
    recipe than the builds before it.
    """
    updated = dict(record)
    for measured in layers:
        known = updated.get(measured.recipe)
        if known and not _is_same_layer(known, measured):
            builds = ", ".join(map(str, known.builds))
            # The first twelve digits after `sha256:`.
            digits_here, digits_before = measured.diff_id[7:19], known.diff_id[7:19]
            cause = (
                f"this build gave other bytes ({digits_here}) than earlier builds of the same "
                f"steps ({digits_before}: {builds})"
            )
            comparing = command("reproduce", build.image, "--beside IMAGE")
            then = (
                f"`{comparing}` builds again and lists the files that differ from IMAGE, a build "
                f"of before; if the new files are right, delete {measured.recipe!r} from "
                f"locks/{FILE}, and give the command again"
            )
            raise wrong(f"the layer {measured.layer} of {build.image}", cause, then)
        updated[measured.recipe] = _with_build(known, measured, build)
    return updated


def _is_same_layer(known: RecordedLayer, measured: Measured) -> bool:
    """Return whether a build gave the same files as a recorded layer.

    Engines may store the same files in different ways. Then only the change digest is the same.
    """
    return measured.diff_id == known.diff_id or measured.change in known.written_as


def _with_build(known: RecordedLayer | None, measured: Measured, build: Build) -> RecordedLayer:
    """Return what is recorded of a layer, with one more build that gave this layer.

    `known` is what was recorded so far; None: nothing. `measured` has the digests of the layer in
    the new `build`. A build that is recorded already is not added twice.
    """
    # All stand for the same files: the canonical diff ID, the engine's, and the change digest.
    digests = {measured.diff_id, measured.written_as}
    if measured.change:
        digests.add(measured.change)
    if known is None:
        return RecordedLayer(
            layer=measured.layer,
            diff_id=measured.diff_id,
            written_as=tuple(sorted(digests - {measured.diff_id})),
            builds=(build,),
        )

    builds = known.builds
    if build.id not in {earlier.id for earlier in builds}:
        builds = (*builds, build)
    # The first diff ID stays, and all others are listed, so that the layer is known by them, too.
    other_digests = digests.union(known.written_as) - {known.diff_id}
    return RecordedLayer(
        layer=known.layer,
        diff_id=known.diff_id,
        written_as=tuple(sorted(other_digests)),
        builds=builds,
    )


def write(record: LayerRecord, locks: Path) -> None:
    """Write the record of layers to layers.json in the folder of locks.

    `record` is recipe -> layer, where a recipe is the digest of all that the layer is built from.
    The file has a line for each layer, sorted by the layer's name and recipe, so that a diff of it
    is easy to review.
    """

    def name_and_recipe(row: tuple[str, RecordedLayer]) -> tuple[str, str]:
        recipe, layer = row
        return layer.layer, recipe

    rows = []
    for recipe, layer in sorted(record.items(), key=name_and_recipe):
        values = layer.model_dump(exclude_defaults=True)
        rows.append(f"{json.dumps(recipe)}: {json.dumps(values)}")
    text = "{\n" + ",\n".join(rows) + "\n}\n"
    write_whole(locks / FILE, text.encode())
