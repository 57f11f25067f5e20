"""Base images: acquired by digest, by tag, from a Debian mirror, or custom; the Python of their own; pinned digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.config.paths import TEMPLATES
from images.context.hosting import HostSettings
from images.context.labels import BaseContext, Origin
from images.engine import ContainerSpec, Engine, EngineError, EngineErrorKind, ImageInfo
from images.errors import Problem, UserError
from images.planning.image import Base, Image, Pin

PINS_FILE = "locks/bases.yaml"
_PIN = "`python -m tools.pin` writes it, in a checkout"
AUTO = "auto"
"""In place of a reference: the matrix's own base image."""
BOOTSTRAPPED = "truetag-base"
"""The repository name of bases that were made here."""


@dataclass(frozen=True, kw_only=True)
class BasePython:
    """The `python3` that a base brings, and what is installed for it."""

    executable: str
    prefix: str
    version: str
    packages: Mapping[str, str]
    """Canonical distribution name to version."""
    torch_cuda: str | None
    """The CUDA that an installed torch was made for; None without torch, or for a CPU torch."""


@dataclass(frozen=True, kw_only=True)
class AcquiredBase:
    """A base that the engine has."""

    reference: str
    """What goes after FROM."""
    digest: str
    """`sha256:...` of the registry's manifest where it came from one, else the image ID."""
    origin: Origin
    python: BasePython | None


def acquire(
    engine: Engine,
    base: Base,
    wanted: str = AUTO,
    *,
    pinned: Mapping[str, str],
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> AcquiredBase:
    """Acquire a base image: afterwards the engine has it. `wanted` is `auto` or the reference of a custom base.

    auto: the pinned digest, else the tag (one that is here, else the registry's), else a root file system bootstrapped
    from a Debian mirror. `on_progress` gets a line about everything but a base found by its digest. Raises UserError.
    """
    # Two builds at once need the same base: the second finds what the first has made, and dpkg is run once.
    with engine.alone(
        f"base {base.key} {base.platform}", lambda: on_progress(f"waits: another build acquires {base.reference}")
    ):
        if wanted == AUTO:
            found = _from_registry(engine, base, pinned.get(base.reference, ""), on_progress)
            return found or _bootstrapped(engine, base, host, on_progress)
        info = engine.find(wanted)
        if info is None:
            on_progress(f"pulling {wanted}")
            info = engine.pull(wanted, platform=base.platform)
        elif info.architecture != base.platform.architecture:
            cause = f"is for {info.architecture}, the image is for {base.platform}"
            raise UserError(Problem(where=wanted, cause=cause, then="give a base of that platform: --base REF"))
        python = read_python(engine, wanted)
        return AcquiredBase(reference=wanted, digest=_digest(info), origin=Origin.CUSTOM, python=python)


def acquire_for(
    engine: Engine,
    image: Image,
    wanted: str = AUTO,
    *,
    pinned: Mapping[str, str],
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> AcquiredBase:
    """Acquire an image's base, as `acquire` does. Raises UserError also where it contradicts the image's pins."""
    base = acquire(engine, image.base, wanted, pinned=pinned, host=host, on_progress=on_progress)
    require_no_contradiction(image, base)
    return base


def _from_registry(engine: Engine, base: Base, pinned: str, on_progress: Callable[[str], None]) -> AcquiredBase | None:
    """By the pinned digest, else by the tag: what the engine has of this platform, else what a registry has."""
    by_digest = (f"{base.reference.rpartition(':')[0]}@{pinned}", Origin.DIGEST, "")
    by_tag = (base.reference, Origin.TAG, " by its tag: no digest is pinned (`python -m tools.pin`)")
    for reference, origin, how in (by_digest, by_tag) if pinned else (by_tag,):
        info = engine.find(reference)
        if info is None or info.architecture != base.platform.architecture:  # a name of a registry means one of each
            if engine.registry_digest(reference) is None:
                if origin is Origin.DIGEST:
                    on_progress(f"no registry answers, so {base.reference} can't be had by its pinned digest")
                continue
            on_progress(f"pulling {reference}{how}")
            info = engine.pull(reference, platform=base.platform)
        digest = pinned if origin is Origin.DIGEST else _digest(info)
        return AcquiredBase(reference=reference, digest=digest, origin=origin, python=read_python(engine, reference))
    return None


def _bootstrapped(engine: Engine, base: Base, host: HostSettings, on_progress: Callable[[str], None]) -> AcquiredBase:
    if base.suite is None:
        cause = "no registry answers, and it is no Debian suite that could be made from a mirror"
        then = "connect to a registry, or give a base you have: --base REF"
        raise UserError(Problem(where=base.reference, cause=cause, then=then), code=1)
    from images.context import bootstrap

    name = f"{BOOTSTRAPPED}:{'-'.join(filter(None, (base.suite, base.platform.suffix)))}"
    info = engine.find(name)
    if info is not None and info.labels.get(bootstrap.BASE_LABEL) == bootstrap.recipe(base.suite):
        on_progress(f"no registry answers for {base.reference}: using {name}, made here before")
    else:
        on_progress(
            f"no registry answers for {base.reference}: MAKING A BASE from a Debian mirror with mmdebstrap, as {name}"
        )
        bootstrap.require_mmdebstrap(on_progress)
        info = bootstrap.bootstrap(engine, base.suite, name, host, base.platform)
    return AcquiredBase(reference=name, digest=info.id, origin=Origin.BOOTSTRAPPED, python=read_python(engine, name))


def _digest(info: ImageInfo) -> str:
    return info.digests[0].rpartition("@")[2] if info.digests else info.id


def base_context(base: AcquiredBase) -> BaseContext:
    """The base context of an acquired base."""
    plain, python = BaseContext(reference=base.reference, origin=str(base.origin), digest=base.digest), base.python
    if python is None:
        return plain
    kept, environment = frozenset(python.packages), python.prefix
    return replace(plain, executable=python.executable, environment=environment, python=True, kept=kept)


# --- a Python that a base brings ------------------------------------------------------------------------------------


def require_no_contradiction(image: Image, base: AcquiredBase) -> None:
    """Raises UserError with all of the base that contradicts the image's pins: nothing of a base is reinstalled."""
    if base.python and (wrong := contradictions(image, base.python)):
        cause = f"contradicts the pins of {image.name}: {'; '.join(wrong)}"
        then = "pin what it has in matrix.yaml, or take another base"
        raise UserError(Problem(where=base.reference, cause=cause, then=then))


def contradictions(image: Image, python: BasePython) -> list[str]:
    """Everything in a base's Python that an image's pins rule out, in words."""
    wrong = []
    if not python.version.startswith(f"{image.python}."):
        wrong.append(f"Python {python.version}, the image needs {image.python}")
    for pin in image.pins:
        found = python.packages.get(pin.name)
        if found is not None and not satisfies(found, pin):
            needed = pin.requirement.partition("==")[2]
            wrong.append(f"{pin.name}: the base has {found}, the image needs {needed}")
    if "torch" in python.packages and python.torch_cuda != str(image.wheel_cuda):
        made_for = f"CUDA {python.torch_cuda}" if python.torch_cuda else "the CPU or an unknown CUDA"
        wrong.append(f"torch: the base's is made for {made_for}, the image needs CUDA {image.wheel_cuda}")
    return wrong


def satisfies(found: str, pin: Pin) -> bool:
    """2.11.0+cu130 is a 2.11.0, and so is one that a vendor built (+nv25.1); a CPU build never is."""
    try:
        version, wanted = Version(found), Version(pin.version)
    except InvalidVersion:
        return found == pin.version
    local = version.local or ""
    return Version(version.public) == wanted and (local == pin.local if pin.local else local.split(".")[0] != "cpu")


def read_python(engine: Engine, reference: str) -> BasePython | None:
    """The Python that `python3` names in an image, read in a container with no network; None if there is none.

    Raises UserError when there is one that can't run.
    """
    program = (TEMPLATES / "base" / "read_python.py").read_text(encoding="utf-8")
    spec = ContainerSpec(reference, ["python3", "-I", "-c", program], name=f"{reference} (reading its Python)")
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
        cause = f"its python3 can't be run: {(done.stderr or done.stdout).strip()[-300:]}"
        raise UserError(Problem(where=reference, cause=cause, then="give another base with --base REF"))
    found = json.loads(done.stdout)
    packages = {canonicalize_name(name): version for name, version in found["packages"].items()}
    return BasePython(**{**found, "packages": packages})


# --- pinned digests -------------------------------------------------------------------------------------------------


def pinned(root: Path) -> Mapping[str, str]:
    """References to digests, of the workspace in a folder; none where nobody recorded any. Raises UserError."""
    file = root / PINS_FILE
    if not file.is_file():
        return {}
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace")) or {}
    except yaml.YAMLError as error:
        raise UserError(Problem(where=PINS_FILE, cause=f"is no YAML: {error}", then=_PIN)) from None
    if not isinstance(data, dict) or not all(str(value).startswith("sha256:") for value in data.values()):
        raise UserError(Problem(where=PINS_FILE, cause="is not `reference: sha256:...`", then=_PIN))
    return data
