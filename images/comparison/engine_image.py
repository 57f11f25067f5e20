"""Reads what an engine has of an image: its packages, its layers and their sizes.

Its files are read by our own Python: no program of the image runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from images.comparison.differences import ImageRecord
from images.engine import Engine, configuration, layers
from images.locking import layer_record
from images.publish import sbom


def read(engine: Engine, reference: str, label: str, locks: Path) -> ImageRecord:
    """Return what an engine has of an image. No claim and no training step is among it.

    `label`: what tables call the image. `locks`: the folder of locks, with the record of layers.
    Raises UserError if the image's files can't be read.
    """
    info = engine.inspect(reference)
    # Digests that are the same whichever engine wrote a layer, so that they can be compared with
    # those of recorded runs. If the store can't be read here, there are none.
    known = layer_record.known_forms(layer_record.read(locks))
    layer_reading = layers.read_layers(engine, info, known)
    layer_digests: Mapping[str, str] = {}
    if layer_reading.canonical:
        layer_digests = layer_reading.compared
    # An engine gives the last step of a history first.
    history = list(reversed(engine.history(info.handle)))

    survey = sbom.read_packages(engine, info.handle, bundled=False)
    packages: dict[str, str] = {}
    for package in survey["python"]:
        packages[canonicalize_name(package["name"])] = package["version"]
    system_packages = {}
    for package in (*survey["toolkit"], *survey["debian"]):
        system_packages[package["name"]] = package["version"]

    return ImageRecord(
        label=label,
        name=reference,
        source=f"the engine's {reference}",
        digest=info.digest,
        packages=packages,
        all_packages=True,
        local_versions=True,
        system_packages=system_packages,
        bytes=info.size,
        layers=layer_digests,
        layer_bytes=configuration.layer_sizes(history),
    )
