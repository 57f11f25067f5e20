"""A base that brings a Python of its own: what is installed in it, and whether that goes with an image's pins."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.engine import ContainerSpec, Engine, EngineError, EngineErrorKind
from images.errors import Problem, UserError
from images.planning.image import Image, Pin


@dataclass(frozen=True, kw_only=True)
class BasePython:
    """The `python3` that a base brings, and what is installed for it."""

    executable: str
    prefix: str
    version: str
    is_venv: bool
    externally_managed: bool
    """pip refuses to install into it (PEP 668)."""
    has_pip: bool
    packages: Mapping[str, str]
    """Canonical distribution name to version."""
    torch_cuda: str | None
    """The CUDA that an installed torch was made for; None without torch, or for a CPU torch."""


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A base holds another version of something that is pinned."""

    pin: Pin
    found: str

    def __str__(self) -> str:
        return f"{self.pin.name}: the base has {self.found}, the image needs {self.pin.requirement.partition('==')[2]}"


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """A base's packages against an image's pins: what stays, what can't be, what is still to be installed."""

    kept: tuple[Pin, ...]
    contradictions: tuple[Contradiction, ...]
    missing: tuple[Pin, ...]


def reconcile(pins: Sequence[Pin], packages: Mapping[str, str]) -> Reconciled:
    """Compare pins with what is installed (canonical name to version), as versions."""
    kept, contradictions, missing = [], [], []
    for pin in pins:
        found = packages.get(pin.name)
        if found is None:
            missing.append(pin)
        elif _satisfies(found, pin):
            kept.append(pin)
        else:
            contradictions.append(Contradiction(pin=pin, found=found))
    return Reconciled(kept=tuple(kept), contradictions=tuple(contradictions), missing=tuple(missing))


def _satisfies(found: str, pin: Pin) -> bool:
    """2.11.0+cu130 is a 2.11.0, and so is one that a vendor built (+nv25.1); a CPU build never is."""
    try:
        version, wanted = Version(found), Version(pin.version)
    except InvalidVersion:
        return found == pin.version
    local = version.local or ""
    return Version(version.public) == wanted and (local == pin.local if pin.local else local.split(".")[0] != "cpu")


def contradictions(image: Image, python: BasePython) -> list[str]:
    """Everything in a base's Python that an image's pins rule out, in words."""
    wrong = []
    if not python.version.startswith(f"{image.python}."):
        wrong.append(f"Python {python.version}, the image needs {image.python}")
    wrong += map(str, reconcile(image.pins, python.packages).contradictions)
    if "torch" in python.packages and python.torch_cuda != str(image.wheel_cuda):
        made_for = f"CUDA {python.torch_cuda}" if python.torch_cuda else "the CPU or an unknown CUDA"
        wrong.append(f"torch: the base's is made for {made_for}, the image needs CUDA {image.wheel_cuda}")
    return wrong


def read_python(engine: Engine, reference: str) -> BasePython | None:
    """The Python that `python3` names in an image, read in a container with no network; None if there is none.

    Raises UserError when there is one that can't run.
    """
    script = importlib.resources.files("images.context").joinpath("read_base.py").read_text()
    spec = ContainerSpec(reference, ["python3", "-I", "-c", script], name=f"{reference} (reading its Python)")
    with engine.container(spec) as box:
        try:
            done = box.run(timeout=600)
        except EngineError as error:
            if error.kind is EngineErrorKind.NO_COMMAND:
                return None
            raise
    if done.exit.code == 127:  # what the init process says when there is no such command
        return None
    if done.exit.code != 0:
        raise UserError(
            Problem(
                where=reference,
                cause=f"its python3 can't be run: {(done.stderr or done.stdout).strip()[-300:]}",
                then="give another base with --base REF",
            )
        )
    return python_of(json.loads(done.stdout))


def python_of(found: Mapping[str, Any]) -> BasePython:
    """What `read_base.py` printed, with canonical package names."""
    packages = {canonicalize_name(name): version for name, version in found["packages"].items()}
    return BasePython(**{**found, "packages": packages})
