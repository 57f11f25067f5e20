"""locks/layers.json: what the layers of images came to, by their recipes (images/context/recipe.py).

`python -m tools.reproduce NAME --record` writes it, and no build does. A layer that images share stands once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from images.errors import wrong
from images.host.cache import write_whole

FILE = "layers.json"
BUILDS_NEEDED = 2
"""One build proves nothing of the next: a layer is known once so many builds gave the same bytes."""


class Build(BaseModel):
    """One build that gave a layer, without a build cache."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    """Drawn by chance: the same build counts once."""
    image: str
    on: str
    """The engine and its version, or the recorded run of results/runs.jsonl that measured these layers."""
    date: str

    def __str__(self) -> str:
        return f"{self.image} on {self.on}"


class RecordedLayer(BaseModel):
    """What a recipe came to in every build of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: str
    """Its name, for people; the recipe is the key."""
    diff_id: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    """In canonical form (images/engine/layers.py); of the settings, their digest."""
    written_as: tuple[str, ...] = ()
    """Diff IDs under which engines keep the same files in another form: those need not be read to be known."""
    builds: tuple[Build, ...]


LayerRecord = Mapping[str, RecordedLayer]
"""Recipe -> the layer."""
_RECORD: TypeAdapter[dict[str, RecordedLayer]] = TypeAdapter(dict[str, RecordedLayer])


class Measured(NamedTuple):
    """A layer as a build gave it."""

    layer: str
    recipe: str
    diff_id: str
    written_as: str


def read(locks: Path) -> LayerRecord:
    """Read the record of a folder of locks; empty where there is none. Raises UserError for a damaged one."""
    file = locks / FILE
    if not file.is_file():
        return {}
    try:
        return _RECORD.validate_json(file.read_bytes())
    except ValidationError as error:
        cause = f"is no record of layers: {error.errors()[0]['msg']}"
        raise wrong(str(file), cause, "restore it from git") from None


def other_forms(record: LayerRecord) -> dict[str, str]:
    """Return diff ID as some engine writes it -> canonical one, of all layers in the record."""
    return {other: layer.diff_id for layer in record.values() for other in layer.written_as}


def layers_of(record: LayerRecord, recipe: str, image: str) -> dict[str, RecordedLayer]:
    """Return the layers that builds of an image's whole recipe gave, by their own recipes; empty where it is unknown.

    The last row of a recipe is that of the settings, and its key is the whole recipe. A build is counted in the row of
    each layer that it gave, so the rows of one recipe are those that have all its builds.
    """
    settings = record.get(recipe)
    if settings is None or len(settings.builds) < BUILDS_NEEDED:
        return {}
    if any(build.image != image for build in settings.builds):
        return {}
    builds = {build.id for build in settings.builds}
    layers = {
        key: layer
        for key, layer in record.items()
        if builds <= {build.id for build in layer.builds}
    }
    del layers[recipe]
    return {**layers, recipe: settings}


def add(record: LayerRecord, layers: list[Measured], build: Build) -> dict[str, RecordedLayer]:
    """Return the record with the layers of one more build. Raises UserError where that gave other bytes."""
    updated = dict(record)
    for measured in layers:
        known = updated.get(measured.recipe)
        if known and known.diff_id != measured.diff_id:
            builds = ", ".join(map(str, known.builds))
            cause = (
                f"is {measured.diff_id[7:19]} here, and was {known.diff_id[7:19]} before ({builds})"
            )
            then = "find out what differs (--beside FILE names the files); only then delete the old row"
            raise wrong(f"the layer {measured.layer} of {build.image}", cause, then)
        other_forms = {*(known.written_as if known else ()), measured.written_as} - {
            measured.diff_id
        }
        builds_before = known.builds if known else ()
        is_counted = any(before.id == build.id for before in builds_before)
        updated[measured.recipe] = RecordedLayer(
            layer=known.layer if known else measured.layer,
            diff_id=measured.diff_id,
            written_as=tuple(sorted(other_forms)),
            builds=builds_before if is_counted else (*builds_before, build),
        )
    return updated


def write(record: LayerRecord, locks: Path) -> None:
    """Write the record, a line a layer, so that a change of one is a change of one line."""
    rows = [
        f"{json.dumps(recipe)}: {json.dumps(layer.model_dump(exclude_defaults=True))}"
        for recipe, layer in sorted(record.items(), key=lambda row: (row[1].layer, row[0]))
    ]
    write_whole(locks / FILE, ("{\n" + ",\n".join(rows) + "\n}\n").encode())
