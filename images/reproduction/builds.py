"""Build an image without any cache, read its layers, and keep what the build gave in a file."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from images.building import contexts
from images.building.contexts import BuildOptions
from images.context.labels import BaseContext
from images.context.render import Context
from images.engine import Engine, ImageInfo, configuration, exported, layers
from images.engine.configuration import SUITE
from images.engine.layer_tree import LayerEntry
from images.engine.progress import Progress
from images.errors import wrong
from images.locking import layer_record, lock_file
from images.planning.image import Image
from images.reproduction.cold_builds import nothing_new_kept, on_own_layer, with_own_wheels
from images.validation.claims.context import ClaimContext
from images.validation.origin import with_one_base

RESULT, FILES = "reproduce.json", "reproduce-files.json.gz"
Files = Mapping[str, Sequence[LayerEntry]]
"""Layer -> what its tar has, in its order."""


@dataclass(frozen=True, kw_only=True)
class LayerBuilt:
    """A layer of a build, or its settings."""

    layer: str
    diff_id: str
    """Of the layer in canonical form, which is the same for all engines."""
    written_as: str
    """The diff ID of the layer as the engine wrote it."""
    change: str = ""
    """Its change digest (images/engine/layers.py); empty if the engine's store can't be read."""


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What one build gave, or what is known of another image of that name."""

    id: str
    """Empty if it is an image of the engine, which may come from the cache of another build."""
    image: str
    on: str
    """The engine, or the machine of a recorded run."""
    date: str
    recipe: Mapping[str, str]
    """Layer -> its recipe; empty if that is not known."""
    unknown: str
    """Why the recipe is not known."""
    layers: Sequence[LayerBuilt]
    seconds: float
    """How long the build took; 0 if that is not known."""

    @property
    def counts_as_build(self) -> bool:
        """Whether nothing of another build went into it."""
        return bool(self.id)


class Reproduction:
    """Builds one image on one engine, each time from nothing."""

    def __init__(
        self,
        engine: Engine,
        image: Image,
        base: BaseContext,
        options: BuildOptions,
        network: str | None,
    ):
        """Make the build context of an image, from its lock. `network` is that of build steps.

        Raises UserError if there is no lock, or if something that the context needs is missing.
        """
        self.engine = engine
        self.base = base
        self.network = network
        self.name = str(image.name)
        self.locks = options.sources.workspace.locks
        lock = lock_file.read(image, self.locks)
        self.claim_context: ClaimContext
        self.context: Context
        _, self.claim_context, self.context = contexts.prepare(image, lock, base, options)

    def build(self, progress: Progress) -> tuple[BuildResult, Files]:
        """Build the image without any cache. Return the digests of its layers, and their files.

        Nothing of the build stays in the engine. Raises UserError if a step fails.
        """
        build_id = uuid.uuid4().hex[:8]
        reference = f"truetag-reproduce:{build_id}"
        # Wheels that another build compiled or fetched count as a cache, too.
        context = on_own_layer(with_own_wheels(self.context, build_id), build_id)
        # The layer that `on_own_layer` adds comes directly above those of the base.
        marker = len(self.engine.inspect(self.base.reference).layers)
        with nothing_new_kept(self.engine, reference):
            job = progress.job(f"{self.name} (without cache)")
            built = self.engine.build(
                context,
                reference,
                network=self.network,
                no_cache=True,
                unpack=False,
                on_event=job,
            )
            info = self.engine.inspect(reference)
            layers_built, files = read_image(self.engine, info, self.locks, marker=marker)

        origin = self.claim_context.origin
        recipe = origin.recipe if origin else None
        result = BuildResult(
            id=build_id,
            image=self.name,
            on=f"Docker {self.engine.facts.version}",
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            recipe={row.layer: row.digest for row in recipe.layers} if recipe else {},
            unknown=origin.unknown if origin else "",
            layers=layers_built,
            seconds=round(built.seconds, 1),
        )
        return result, files


def read_image(
    engine: Engine, info: ImageInfo, locks: Path, marker: int | None = None
) -> tuple[list[LayerBuilt], Files]:
    """Return the layers of an image with their digests, and name of a layer -> its files.

    A layer is named after its step, such as `torch`. The layers of the base count as one, the
    suite's is left out, and the image's settings are the last row. A layer's digest is its diff ID,
    that of its tar. Engines write the same files as different tars, so layers are compared by the
    digest of the tar in canonical form. If the engine's store can't be read here, its own tars are
    taken for canonical (true of engines from 26.1 on, wrong for older ones), and a layer's list of
    files is empty.

    locks: the folder with the record of layers, which knows the canonical form of recorded ones.
    marker: the index of a layer to leave out: `on_own_layer` adds it above the base, so that no
        layer of this build comes from the cache of another (images/reproduction/cold_builds.py).
    """
    stored = layers.find_layers(engine, info)
    canonical = {diff_id: diff_id for diff_id in info.layers}
    recorded = layer_record.known_forms(layer_record.read(locks))
    canonical |= layers.canonical_diff_ids(stored, recorded, info.digest)
    changes = layers.change_digests(stored, info.digest)
    listings = exported.entries(engine, info) or [[] for _ in info.layers]

    # Name the layers by the steps that made them. The marker's step is left out before that,
    # because names count the steps of an image (`base`, `base-2`).
    steps = engine.steps(info.handle)
    steps_with_layer = [text for text in steps if configuration.has_layer(text)]
    indexes = [index for index in range(len(info.layers)) if index != marker]
    names = configuration.layer_names([steps_with_layer[index] for index in indexes])

    # Layer -> its digest as the engine wrote it, its canonical digest, and its files.
    written_as: dict[str, str] = {}
    diff_ids: dict[str, str] = {}
    files: dict[str, Sequence[LayerEntry]] = {}
    for name, index in zip(names, indexes, strict=True):
        if name != SUITE:
            written_as[name] = info.layers[index]
            diff_ids[name] = canonical[info.layers[index]]
            files[name] = listings[index]

    # A base of several layers counts as one.
    written_with_one_base = with_one_base(written_as)
    layers_built = []
    for name, diff_id in with_one_base(diff_ids).items():
        written = written_with_one_base[name]
        # A base of several layers has no change digest.
        change = changes.get(written, "")
        layers_built.append(
            LayerBuilt(layer=name, diff_id=diff_id, written_as=written, change=change)
        )

    # The image's settings count as a layer.
    settings = configuration.payload(info, steps)[configuration.SETTINGS]
    layers_built.append(
        LayerBuilt(layer=configuration.SETTINGS, diff_id=settings, written_as=settings)
    )
    return layers_built, files


def write_result(folder: Path, result: BuildResult, files: Files) -> None:
    """Write what a build gave into a folder, for a comparison on another engine or machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(asdict(result), indent=1) + "\n")
    (folder / FILES).write_bytes(gzip.compress(json.dumps({**files}).encode()))


def read_result(file: Path) -> tuple[BuildResult, Files]:
    """Read the result of a build, and the files of its layers, that `write_result` wrote.

    `file` is the RESULT in the folder, and FILES lies beside it. Raises UserError if one of them is
    missing or damaged.
    """
    try:
        data: dict[str, Any] = json.loads(file.read_bytes())
        rows_of_layers = data.pop("layers")
        rows = [LayerBuilt(**row) for row in rows_of_layers]
        # Layer -> the rows of its files.
        listings = json.loads(gzip.decompress((file.parent / FILES).read_bytes()))
        files = {}
        for layer, entries in listings.items():
            files[layer] = [entry_of(row) for row in entries]
        return BuildResult(layers=rows, **data), files
    # The file is missing, was cut off, or has other fields than this version writes.
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        then = f"name a {RESULT} that `reproduce` wrote, with {FILES} beside it"
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise wrong(str(file), f"is no result of `reproduce`: {cause}", then) from None


def entry_of(row: Sequence[Any]) -> LayerEntry:
    """Return an entry as it was before it was written as JSON, which has no tuples."""
    path, kind, mode, owner, time, link, content, attributes = row
    return LayerEntry(path, kind, mode, (owner[0], owner[1]), time, link, content, attributes)
