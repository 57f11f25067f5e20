"""Matrices of any size, of the project's own toolkits, stacks and Pythons, times made-up profiles. Pure.

Only combinations that the plan accepts are taken, which cost the planner most, and none for one arch: such an image
would share its parent's lock, so that there were fewer to read. The same count gives the same matrix.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from images.config.matrix import Sources
from images.config.names import ImageName, Minor
from images.config.schema import Matrix
from images.locking import lock_file
from images.locking.inputs import lock_inputs
from images.locking.lock_file import Lock
from images.locking.uv import Package
from images.planning import plan
from images.planning.image import Image

_OTHERS = {"torch": 20, "libraries": 31}
"""Packages beside the pins in a made-up lock: as many as the locks of cu126-torch25 have."""


def text(sources: Sources, count: int) -> str:
    """A matrix.yaml of `count` accepted images. Raises ValueError for fewer than the project's aliases need."""
    combinations = tuple(_combinations(sources))
    own = [row.model_dump(mode="json", exclude_defaults=True) for row in sources.matrix.images]
    left = count - sum(len(row.names()) for row in sources.matrix.images)
    if left < 0:
        raise ValueError(f"the project itself has {count - left} images, more than {count}")
    profiles = [f"team{number}" for number in range(-(-left // len(combinations)))]
    made = (str(replace(name, profile=profile)) for profile in profiles for name in combinations)
    data = sources.matrix.model_dump(mode="json", exclude_defaults=True)
    data["profiles"] |= {profile: _profile(sources.matrix, number) for number, profile in enumerate(profiles)}
    data["images"] = [*own, *({"name": name} for name in itertools.islice(made, left))]
    return written(data)


def _combinations(sources: Sources) -> Iterator[ImageName]:
    """Names without profile and arch that the plan accepts, in an order that mixes what they are made of."""
    matrix = sources.matrix
    pythons = [None, *sorted({Minor.parse(base.python) for base in matrix.bases.values()})]
    parts = itertools.product(matrix.toolkits, matrix.stacks, pythons, (False, True))
    every = [
        ImageName(cuda=Minor.parse(cuda), torch=Minor.parse(torch), python=python, devel=devel)
        for cuda, torch, python, devel in parts
    ]
    special = {row.name for row in matrix.images if row.without or row.archs}  # accepted with what the row says
    for name in sorted(every, key=lambda name: hashlib.sha256(str(name).encode()).digest()):
        if str(name) not in special and plan.plan_one(name, sources).accepted:
            yield name


def _profile(matrix: Matrix, number: int) -> dict[str, object]:
    """A profile for every torch, with one pin of its own."""
    return {"page": "bench", "stacks": {torch: {"nvidia-ml-py": f"13.{number}.0"} for torch in matrix.stacks}}


def written(data: Mapping[str, Any]) -> str:
    """matrix.yaml as people write it: a row an image."""
    rows = "".join(f"  - {json.dumps(row)}\n" for row in data["images"])
    others = {key: value for key, value in data.items() if key != "images"}
    return yaml.safe_dump(others, width=120, sort_keys=False) + f"images:\n{rows}"


def locks(images: Iterable[Image]) -> Iterator[tuple[str, bytes]]:
    """Path below the folder of locks -> content: a present lock for each image, as large as the project's own are."""
    by_name = {image.lock_name: image for image in images}
    for name, image in by_name.items():
        wanted = lock_inputs(image)
        layers = {
            layer: tuple(_packages(layer, pins)) for layer, pins in (*wanted.layers.items(), *wanted.alone.items())
        }
        files = {f"{layer}.txt": lock_file.print_requirements(packages) for layer, packages in layers.items()}
        for path, content in lock_file.written(Lock(inputs=wanted, files=files, layers=layers)).items():
            yield f"{name}/{path}", content


def _packages(layer: str, pins: Sequence[str]) -> Iterator[Package]:
    """What is pinned, and as many others as a closure has."""
    for requirement in pins:
        name, _, version = requirement.partition("==")
        yield _package(name, version)
    for number in range(_OTHERS.get(layer, 0)):
        yield _package(f"{layer}-needs-{number}", f"1.{number}.0")


def _package(name: str, version: str) -> Package:
    return Package(name=name, version=version, hashes=(hashlib.sha256(f"{name} {version}".encode()).hexdigest(),))
