"""Acquires base images: by digest, by tag, made of Debian packages, or custom.

Also reads the Python that a base brings, and the digests that are pinned in locks/bases.yaml.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.config.paths import TEMPLATES
from images.context.hosting import HostSettings
from images.context.labels import BaseContext, Origin
from images.engine import ContainerSpec, Engine, EngineError, EngineErrorKind, ImageInfo
from images.errors import command, failed, wrong
from images.locking import debian
from images.locking.debian import DebianLock
from images.planning.image import Base, Image, Pin
from validate.installation import by_installation

PINS_FILE = "locks/bases.yaml"
_PIN = by_installation(
    checkout="correct the file; `python -m tools.pin` writes it anew",
    installed="correct the file, or remove it: bases are then taken by their tags",
)
AUTO = "auto"
"""In place of a reference: the base that the matrix names, however it can be had."""
BOOTSTRAPPED = "truetag-base"
"""The repository of bases that were made on this machine."""


def acquire(
    engine: Engine,
    base: Base,
    requested: str = AUTO,
    *,
    root: Path,
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> BaseContext:
    """Make sure that the engine has a base image, and return what is known of it.

    `requested` is the reference of a custom base, or `auto`. For `auto`, the base is found in this
    order, by what the workspace in `root` has:

    1. by its pinned digest (locks/bases.yaml), and in no other way if there is one;
    2. made of locked Debian packages, if mmdebstrap is installed;
    3. by its tag, from the engine or a registry;
    4. made of locked Debian packages, for which mmdebstrap is installed first.

    `on_progress` gets a line before each step that takes long. Raises UserError if nothing works.
    """

    def say_waiting() -> None:
        on_progress(f"waits: another build acquires {base.reference}")

    # Two builds at once need the same base: the second finds what the first has made.
    with engine.hold_lock(f"base {base.key} {base.platform}", say_waiting):
        if requested != AUTO:
            return _acquire_custom(engine, base, requested, on_progress)
        digest = pinned(root).get(base.reference)
        if digest:
            return _acquire_by_digest(engine, base, digest, on_progress)
        lock = debian.find(base, root / "locks")
        # Locked packages that can be used at once come before the tag, all others after it.
        if lock is None or not shutil.which("mmdebstrap"):
            base_by_tag = _acquire_by_tag(engine, base, on_progress, has_lock=lock is not None)
            if base_by_tag:
                return base_by_tag
        # Only a Debian suite can be made of packages.
        if base.suite is None:
            cause = (
                "no registry answers, and only bases of Debian can be made without one, "
                "from a Debian mirror"
            )
            then = "connect to a registry, or give a base you have: --base REF"
            raise failed(base.reference, cause, then)
        lock = lock or debian.require(base, root / "locks")
        return _make_of_packages(engine, base, lock, host, on_progress)


def _acquire_custom(
    engine: Engine, base: Base, reference: str, on_progress: Callable[[str], None]
) -> BaseContext:
    """Return a custom base, which is pulled if the engine lacks it.

    Raises UserError if it is for another platform than `base`.
    """
    info = engine.find(reference)
    if info is None:
        on_progress(f"pulling {reference}")
        info = engine.pull(reference, platform=base.platform)
    elif info.architecture != base.platform.architecture:
        cause = f"is for {info.architecture}, the image is for {base.platform}"
        raise wrong(reference, cause, f"name a base for {base.platform} with --base REF")
    return _describe(engine, info, reference, "custom")


def _acquire_by_digest(
    engine: Engine, base: Base, digest: str, on_progress: Callable[[str], None]
) -> BaseContext:
    """Return a base by its pinned digest. Raises UserError if it is nowhere: no other will do."""
    reference = f"{base.reference.rpartition(':')[0]}@{digest}"
    info = _find_or_pull(engine, base, reference, "", on_progress)
    if info is None:
        cause = (
            f"no registry answers, and {PINS_FILE} pins it to {digest}: "
            "its images are built on no other base"
        )
        then = (
            "connect to a registry, give a base you have (--base REF), "
            f"or take its line out of {PINS_FILE}"
        )
        raise failed(base.reference, cause, then)
    return replace(_describe(engine, info, reference, "digest"), digest=digest)


def _acquire_by_tag(
    engine: Engine, base: Base, on_progress: Callable[[str], None], *, has_lock: bool
) -> BaseContext | None:
    """Return a base by its tag; None if the engine lacks it and no registry answers.

    A tag may name other bytes tomorrow, so the progress says why the base is taken in this way.
    `has_lock`: it could be made of locked packages instead, if mmdebstrap were installed.
    """
    if has_lock:
        reason = "mmdebstrap is not here to make it of locked packages"
    else:
        how = by_installation(
            checkout="`python -m tools.pin`", installed=f"a line of {PINS_FILE} pins one"
        )
        reason = f"no digest is pinned ({how})"
    info = _find_or_pull(engine, base, base.reference, f" by its tag: {reason}", on_progress)
    return _describe(engine, info, base.reference, "tag") if info else None


def _make_of_packages(
    engine: Engine,
    base: Base,
    lock: DebianLock,
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> BaseContext:
    """Return a base made of locked Debian packages. One that the engine has is used again.

    mmdebstrap is installed if it is missing. Raises UserError if that, or making the base, fails.
    """
    from images.context import bootstrap  # only few builds need it

    name = f"{BOOTSTRAPPED}:{base.suite}"
    if base.platform.suffix:
        name += f"-{base.platform.suffix}"
    info = engine.find(name)
    # Its labels say of which packages it was made, and how.
    is_current = info is not None and bootstrap.labels(lock).items() <= info.labels.items()
    if info is None or not is_current:
        lock_path = f"locks/{debian.lock_path(base)}"
        on_progress(f"MAKING {name} with mmdebstrap of the Debian packages in {lock_path}")
        bootstrap.require_mmdebstrap(on_progress)
        info = bootstrap.bootstrap(engine, base, lock, name, host)
    context = _describe(engine, info, name, "bootstrapped")
    # No registry has it, so its image ID stands for the digest. The build's first layer installs
    # the other packages of the lock.
    return replace(context, digest=info.digest, packages=lock.serialize_only(lock.layer))


def _find_or_pull(
    engine: Engine,
    base: Base,
    reference: str,
    note: str,
    on_progress: Callable[[str], None],
) -> ImageInfo | None:
    """Return the image of a reference, for the base's platform, from the engine or a registry.

    None: the engine lacks it, and no registry answers.

    `note` follows the reference in the line of progress about pulling.
    """
    info = engine.find(reference)
    # The engine may have the image of another platform under this name.
    if info and info.architecture == base.platform.architecture:
        return info
    # The digest is asked for only to see whether a registry answers and has the image.
    if engine.registry_digest(reference) is None:
        return None
    on_progress(f"pulling {reference}{note}")
    return engine.pull(reference, platform=base.platform)


def _describe(engine: Engine, info: ImageInfo, reference: str, origin: Origin) -> BaseContext:
    """Return what is known of a base that the engine has, with the Python that is in it."""
    # An image that no registry has is known by the digest of its configuration.
    digest = info.digests[0].rpartition("@")[2] if info.digests else info.digest
    context = read_python(engine, reference)
    return replace(context, reference=reference, origin=origin, digest=digest)


def require_no_contradiction(image: Image, base: BaseContext) -> None:
    """Raise UserError, with every contradiction, if the base contradicts the image's pins.

    What a base has is not installed again, so it must be what the image pins.
    """
    contradictions = []
    # The base's Python reads 3.11.9, the image's 3.11.
    if base.python and not base.python.startswith(f"{image.python}."):
        contradictions.append(f"Python {base.python}, the image needs {image.python}")
    for pin in image.pins:
        installed = base.installed.get(pin.name)
        if installed is not None and not satisfies(installed, pin):
            # With the local version: `2.7.1+cu128`.
            needed = pin.requirement.partition("==")[2]
            contradictions.append(f"{pin.name}: the base has {installed}, the image needs {needed}")
    if "torch" in base.installed and base.torch_cuda != str(image.wheel_cuda):
        made_for = f"CUDA {base.torch_cuda}" if base.torch_cuda else "the CPU or an unknown CUDA"
        contradictions.append(
            f"torch: the base's is made for {made_for}, the image needs CUDA {image.wheel_cuda}"
        )
    if contradictions:
        cause = f"contradicts the pins of {image.name}: {'; '.join(contradictions)}"
        then = (
            "name another base with --base REF; or pin these versions in matrix.yaml, then "
            f"`{command('lock', str(image.name))}`"
        )
        raise wrong(base.reference, cause, then)


def satisfies(installed: str, pin: Pin) -> bool:
    """Return whether an installed version is the pinned one, whoever built it.

    2.11.0+cu130 is a 2.11.0, and so is a vendor's build (+nv25.1), but never a CPU build. If the
    pin names a build, it must be that.
    """
    try:
        version, pinned_version = Version(installed), Version(pin.version)
    except InvalidVersion:
        return installed == pin.version
    # The local version names the build. The version of a pin has none: it is in `pin.local`.
    public, build = Version(version.public), version.local or ""
    if public != pinned_version:
        return False
    if pin.local:
        return build == pin.local
    return build.split(".")[0] != "cpu"


def read_python(engine: Engine, reference: str) -> BaseContext:
    """Return a base with what its `python3` says of itself, run in a container without network.

    The base has no Python if there is no `python3`. Raises UserError if there is one that fails.
    """
    plain = BaseContext(reference=reference, origin="")
    program = (TEMPLATES / "base" / "read_python.py").read_text(encoding="utf-8")
    spec = ContainerSpec(
        reference, ["python3", "-I", "-c", program], name=f"{reference} (reading its Python)"
    )
    with engine.container(spec) as container:
        try:
            finished = container.run(timeout=600)
        except EngineError as error:
            if error.kind is EngineErrorKind.NO_COMMAND:
                return plain
            raise
    # The container's init process ends with 127 if there is no python3.
    if finished.code == 127:
        return plain
    if finished.code != 0:
        output = (finished.stderr or finished.stdout).strip()
        cause = f"its python3 can't be run: {output[-300:]}"
        raise wrong(reference, cause, "name another base with --base REF")
    return add_python(plain, finished.stdout)


def add_python(base: BaseContext, text: str) -> BaseContext:
    """Return the base with the Python that it brings.

    `text` is what templates/base/read_python.py printed in it: JSON.
    """
    python = json.loads(text)
    installed = {}
    for name, version in python["packages"].items():
        installed[str(canonicalize_name(name))] = version
    return replace(
        base,
        executable=python["executable"],
        environment=python["prefix"],
        python=python["version"],
        installed=installed,
        torch_cuda=python["torch_cuda"],
    )


def made_of_packages(images: Iterable[Image], root: Path) -> dict[str, Base]:
    """Return the bases of these images that are made of Debian packages, by the path of their lock.

    These have no pinned digest. `root` is the workspace. Raises UserError as `pinned` does.
    """
    digests = pinned(root)
    bases = {}
    for image in images:
        if image.base.suite and image.base.reference not in digests:
            bases[debian.lock_path(image.base)] = image.base
    return bases


def pinned(root: Path) -> Mapping[str, str]:
    """Return the digests that the workspace in `root` pins, by reference; none without the file.

    Raises UserError for a file that is not `reference: sha256:...`.
    """
    file = root / PINS_FILE
    if not file.is_file():
        return {}
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace")) or {}
    except yaml.YAMLError as error:
        raise wrong(PINS_FILE, f"is no YAML: {error}", _PIN) from None
    if not isinstance(data, dict) or not all(
        str(value).startswith("sha256:") for value in data.values()
    ):
        cause = "has an entry that does not read `REFERENCE: sha256:DIGEST`"
        raise wrong(PINS_FILE, cause, _PIN)
    return data
