"""Base images: by digest, of locked Debian packages, by tag, or custom; the Python of their own; pinned digests."""

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
from images.errors import failed, wrong
from images.locking import debian
from images.planning.image import Base, Image, Pin

PINS_FILE = "locks/bases.yaml"
_PIN = "`python -m tools.pin` writes it, in a checkout"
AUTO = "auto"
BOOTSTRAPPED = "truetag-base"


def acquire(
    engine: Engine,
    base: Base,
    wanted: str = AUTO,
    *,
    root: Path,
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> BaseContext:
    """Acquire a base image: afterwards the engine has it. `wanted` is `auto` or the reference of a custom base.

    auto: what the locks of the workspace in `root` say, a digest or Debian packages. Where mmdebstrap, which makes a
    base of these, is not installed: the tag (one that is here, else the registry's), else mmdebstrap is installed.
    `on_progress` gets a line about everything but a base found by its digest. Raises UserError.
    """
    # Two builds at once need the same base: the second finds what the first has made, and dpkg is run once.
    with engine.hold_lock(
        f"base {base.key} {base.platform}",
        lambda: on_progress(f"waits: another build acquires {base.reference}"),
    ):
        if wanted != AUTO:
            info = engine.find(wanted)
            if info is None:
                on_progress(f"pulling {wanted}")
                info = engine.pull(wanted, platform=base.platform)
            elif info.architecture != base.platform.architecture:
                cause = f"is for {info.architecture}, the image is for {base.platform}"
                raise wrong(wanted, cause, "give a base of that platform: --base REF")
            return _described(engine, info, wanted, "custom")
        if digest := pinned(root).get(base.reference):
            reference = f"{base.reference.rpartition(':')[0]}@{digest}"
            if (info := _pulled(engine, base, reference, "", on_progress)) is None:
                cause = f"no registry answers, and {PINS_FILE} pins it to {digest}: its images are built on no other base"
                then = f"connect to a registry, give a base you have (--base REF), or take its line out of {PINS_FILE}"
                raise failed(base.reference, cause, then)
            return replace(_described(engine, info, reference, "digest"), digest=digest)
        lock = debian.find(base, root / "locks")
        if not (lock and shutil.which("mmdebstrap")):
            made = "mmdebstrap is not here to make it of locked packages"
            how = f" by its tag: {made if lock else 'no digest is pinned (`python -m tools.pin`)'}"
            if info := _pulled(engine, base, base.reference, how, on_progress):
                return _described(engine, info, base.reference, "tag")
        if base.suite is None:
            cause = (
                "no registry answers, and it is no Debian suite that could be made from a mirror"
            )
            raise failed(
                base.reference, cause, "connect to a registry, or give a base you have: --base REF"
            )
        from images.context import bootstrap

        lock = lock or debian.require(base, root / "locks")
        name = f"{BOOTSTRAPPED}:{'-'.join(filter(None, (base.suite, base.platform.suffix)))}"
        info = engine.find(name)
        if info is None or not bootstrap.labels(lock).items() <= info.labels.items():
            on_progress(
                f"MAKING {name} with mmdebstrap of the Debian packages in locks/{debian.place(base)}"
            )
            bootstrap.require_mmdebstrap(on_progress)
            info = bootstrap.bootstrap(engine, base, lock, name, host)
        found = _described(engine, info, name, "bootstrapped")
        return replace(found, digest=info.id, packages=lock.part(lock.layer))


def _pulled(
    engine: Engine, base: Base, reference: str, how: str, on_progress: Callable[[str], None]
) -> ImageInfo | None:
    """What the engine has of this platform under a name, else what a registry has; None: no registry answers."""
    info = engine.find(reference)
    if (
        info is None or info.architecture != base.platform.architecture
    ):  # a name of a registry means one of each
        if engine.registry_digest(reference) is None:
            return None
        on_progress(f"pulling {reference}{how}")
        info = engine.pull(reference, platform=base.platform)
    return info


def _described(engine: Engine, info: ImageInfo, reference: str, origin: Origin) -> BaseContext:
    digest = info.digests[0].rpartition("@")[2] if info.digests else info.id
    return replace(
        read_python(engine, reference), reference=reference, origin=origin, digest=digest
    )


def require_no_contradiction(image: Image, base: BaseContext) -> None:
    """Raises UserError with all of the base that contradicts the image's pins: nothing of a base is reinstalled."""
    against = []
    if base.python and not base.python.startswith(f"{image.python}."):
        against.append(f"Python {base.python}, the image needs {image.python}")
    for pin in image.pins:
        found = base.installed.get(pin.name)
        if found is not None and not satisfies(found, pin):
            needed = pin.requirement.partition("==")[2]
            against.append(f"{pin.name}: the base has {found}, the image needs {needed}")
    if "torch" in base.installed and base.torch_cuda != str(image.wheel_cuda):
        made_for = f"CUDA {base.torch_cuda}" if base.torch_cuda else "the CPU or an unknown CUDA"
        against.append(
            f"torch: the base's is made for {made_for}, the image needs CUDA {image.wheel_cuda}"
        )
    if against:
        then = "pin what it has in matrix.yaml, or take another base"
        raise wrong(
            base.reference, f"contradicts the pins of {image.name}: {'; '.join(against)}", then
        )


def satisfies(found: str, pin: Pin) -> bool:
    """2.11.0+cu130 is a 2.11.0, and so is one that a vendor built (+nv25.1); a CPU build never is."""
    try:
        version, wanted = Version(found), Version(pin.version)
    except InvalidVersion:
        return found == pin.version
    local = version.local or ""
    return Version(version.public) == wanted and (
        local == pin.local if pin.local else local.split(".")[0] != "cpu"
    )


def read_python(engine: Engine, reference: str) -> BaseContext:
    """An image with the Python that `python3` names in it, if any, read in a container with no network.

    Raises UserError when there is one that can't run.
    """
    plain = BaseContext(reference=reference, origin="")
    program = (TEMPLATES / "base" / "read_python.py").read_text(encoding="utf-8")
    spec = ContainerSpec(
        reference, ["python3", "-I", "-c", program], name=f"{reference} (reading its Python)"
    )
    with engine.container(spec) as box:
        try:
            done = box.run(timeout=600)
        except EngineError as error:
            if error.kind is EngineErrorKind.NO_COMMAND:
                return plain
            raise
    if done.code == 127:  # what the init process says when there is no such command
        return plain
    if done.code != 0:
        cause = f"its python3 can't be run: {(done.stderr or done.stdout).strip()[-300:]}"
        raise wrong(reference, cause, "give another base with --base REF")
    return described_python(plain, done.stdout)


def described_python(base: BaseContext, text: str) -> BaseContext:
    """A base with what templates/base/read_python.py said of its Python."""
    found = json.loads(text)
    installed = {
        str(canonicalize_name(name)): version for name, version in found["packages"].items()
    }
    return replace(
        base,
        executable=found["executable"],
        environment=found["prefix"],
        python=found["version"],
        installed=installed,
        torch_cuda=found["torch_cuda"],
    )


def made_of_packages(images: Iterable[Image], root: Path) -> dict[str, Base]:
    """Where a lock of Debian packages lies -> its base, of those that no digest is pinned for. Raises UserError."""
    bases, digests = (image.base for image in images), pinned(root)
    return {
        debian.place(base): base for base in bases if base.suite and base.reference not in digests
    }


def pinned(root: Path) -> Mapping[str, str]:
    """References to digests, of the workspace in a folder; none where nobody recorded any. Raises UserError."""
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
        raise wrong(PINS_FILE, "is not `reference: sha256:...`", _PIN)
    return data
