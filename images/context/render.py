"""Image + lock into a build context: a dict of path to bytes. Pure: no clock, no engine, no environment.

The same dict is written to disk (`render`), compared with what lies there, or packed for the engine.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.config.names import Minor
from images.config.paths import TEMPLATES
from images.config.platforms import Platform
from images.context import pruner
from images.context.labels import BaseContext, labels
from images.context.templates import EPOCH, environment, step_macros
from images.host.hashing import sha256
from images.planning import user_overlay
from images.planning.candidate import PROFILE_LAYER
from images.planning.image import Image
from images.planning.user_overlay import packages

LIBRARIES = "cuda"

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OFFLINE = b"""\
unset UV_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL
export UV_OFFLINE=1 UV_DEFAULT_INDEX=file:///run/no-index UV_FIND_LINKS=/run/wheels
"""
"""Offline alone is not enough: uv then takes what its cache remembers of an index, and lacks the files."""
_CONSTRAINTS_HEAD = """\
# What pip and uv may not move in {name} (PIP_CONSTRAINT, UV_CONSTRAINT): torch, CUDA's libraries and kernels.
# A package that wants others is refused: take a release of it that fits this torch, or an image with its torch.
"""

Context = dict[str, bytes | Path]
"""Path in the context -> its bytes, or the file on this machine that holds them (large wheels)."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One Python layer of the Dockerfile."""

    name: str
    below: str
    holds: tuple[str, ...]
    lock: bool
    index: str = ""
    wheels: tuple[str, ...] = ()
    toolkit_above: bool = False
    from_source: bool = False
    """Some of its packages are built while they are installed."""
    pruned: bool = True
    """Device code of other architectures is taken out, in an image that is for one."""
    wheels_kept: bool = True
    """The engine keeps its wheels for other builds: of all but the largest layers, which images share as they are."""


def render(
    image: Image,
    locks: Mapping[str, bytes],
    base: BaseContext,
    *,
    host: Mapping[str, bytes] | None = None,
    wheels: Mapping[str, bytes | Path] | None = None,
    missing: Mapping[str, str] | None = None,
    offline: bool = False,
    suite: Mapping[str, bytes] | None = None,
    recipe: str = "",
) -> Context:
    """The whole context of one image.

    `locks` holds `torch.txt` and the like, one a layer, and `tools.txt`. Lines of packages that the base keeps
    are taken out. Everything that differs between images of one torch comes after what they share.

    host: files under host/ (CA bundle and index settings), mounted by steps and kept in no layer.
    wheels: file name -> file, of wheels that no index has.
    missing: optional package -> why this image goes without it.
    offline: `wheels` holds everything that is installed, no step reaches an index.
    suite: the suite and the image's claims, for the commands `validate` and `doctor` in the image.
    recipe: the digest of what the layers are made of (images/context/recipe.py), for a label.
    """
    host, wheels, missing, suite = (
        host or {"host/env": b""},
        wheels or {},
        missing or {},
        suite or {},
    )
    elsewhere = {*base.installed, *image.extended(wheels)}
    files: Context = {
        # The toolkit and the tools are no packages of the environment: what the base has does not stand in for them.
        f"locks/{name}": without_packages(content, elsewhere)
        if name.removesuffix(".txt") in image.layers
        else content
        for name, content in locks.items()
    }
    files |= parted(files, image.layers[0])
    files |= scripts()
    if base.packages:
        files["locks/debian.txt"] = base.packages
    if image.name.platform is not Platform.AMD64:
        files["scripts/installer.sh"] = (TEMPLATES / "platforms" / "installer.sh").read_bytes()
    files |= pruner.files(image.pruning) if image.pruning else {}
    if image.entrypoint:
        files[f"entrypoints/{image.entrypoint}"] = (
            TEMPLATES / "entrypoints" / image.entrypoint
        ).read_bytes()
    files |= host
    files |= {f"suite/{name}": content for name, content in suite.items()}
    files |= overlay_files(image, base, locks, missing)
    if offline:
        files["host/env"] = offline_settings(files["host/env"])
    files["wheels/README"] = (
        b"Wheels that no index has: official prebuilt ones, or from --wheelhouse.\n"
    )
    files |= {f"wheels/{name}": path for name, path in wheels.items()}
    template = environment().get_template("Dockerfile.j2")
    dockerfile = template.render(
        image=image,
        torch=image.pin("torch"),
        base=base,
        user=user_overlay.USER,
        layers=tuple(
            _stages(image, files, sorted(wheels), missing, "" if offline else index(image))
        ),
        # ENV of the final stage: it differs between images, so no shared layer may see it.
        environment={
            **image.environment,
            **user_overlay.variables(image),
            "PATH": ":".join(search_path(image, base, overlay_key(image, locks))),
            **user_overlay.IDENTITY,
        },
        additions=user_overlay.python(image).rpartition("/")[0],
        labels=labels(image, base, missing, recipe),
        installer=next((name for name in sorted(wheels) if name.startswith("uv-")), ""),
        epoch=EPOCH,
        native_installer=image.name.platform is not Platform.AMD64,
        **step_macros(offline=offline, pruning=image.pruning is not None),
        suite=bool(suite),
    )
    files["Dockerfile"] = dockerfile.encode()
    return dict(sorted(files.items()))


def scripts() -> Context:
    """The programs of the build's steps."""
    paths = (path for path in (TEMPLATES / "scripts").iterdir() if path.is_file())
    return {f"scripts/{path.name}": path.read_bytes() for path in paths}


def offline_settings(settings: bytes | Path) -> bytes:
    """host/env of a build whose steps reach no network, and find their wheels in /run/wheels."""
    return b"%s%s" % (content_of(settings), _OFFLINE)


def content_of(file: bytes | Path) -> bytes:
    """A file of a context, wherever its bytes are."""
    return file if isinstance(file, bytes) else file.read_bytes()


def parted(files: Context, bottom: str) -> Context:
    """The bottom layer's lock in two: NVIDIA's libraries, and torch above them.

    They are the two halves of an image. Engines make, hash, fetch and unpack layers side by side, and images for single
    architectures have the same libraries as long as those are not pruned.
    """
    whole = content_of(files[f"locks/{bottom}.txt"])
    names = frozenset(locked_versions(whole))
    libraries = frozenset(name for name in names if name.startswith("nvidia-"))
    if not libraries or libraries == names:
        return {}
    return {
        f"locks/{bottom}.txt": without_packages(whole, libraries),
        f"locks/{LIBRARIES}.txt": without_packages(whole, names - libraries),
    }


def libraries(index: str, *, pruned: bool = False) -> Stage:
    """The stage that `parted` gave a lock of its own."""
    holds = ("NVIDIA's libraries",)
    return Stage(
        name=LIBRARIES,
        below="system",
        holds=holds,
        lock=True,
        index=index,
        pruned=pruned,
        wheels_kept=False,
    )


def _stages(
    image: Image, files: Context, wheels: Sequence[str], missing: Collection[str], index: str
) -> Iterator[Stage]:
    below, extended = "system", image.extended(wheels)
    if f"locks/{LIBRARIES}.txt" in files:
        yield libraries(index, pruned=bool(image.pruning and image.pruning.nvidia))
        below = LIBRARIES
    for name in image.layers:
        pins = [pin for pin in image.pins if pin.layer == name]
        # The lock's own wheels lie there too in a build without a network, and are installed by the lock.
        distributions = {
            pin.name.replace("-", "_") for pin in pins if not pin.locked or pin.name in extended
        }
        yield Stage(
            name=name,
            below=below,
            holds=tuple(f"{pin.name} {pin.version}" for pin in pins if pin.name not in missing),
            lock=bool(locked_versions(files.get(f"locks/{name}.txt", b""))),
            index=index,
            wheels=tuple(file for file in wheels if file.split("-")[0] in distributions),
            # Below what a profile adds, so that the toolkit's layer is shared too.
            toolkit_above=name == [layer for layer in image.layers if layer != PROFILE_LAYER][-2],
            from_source=name == PROFILE_LAYER and bool(image.from_source),
            wheels_kept=name != image.layers[0],
        )
        below = name


def index(image: Image) -> str:
    """Arguments of the installer for images whose torch another index has."""
    return f" --index {image.index} --index-strategy unsafe-best-match" if image.index else ""


def search_path(image: Image, base: BaseContext, key: str) -> tuple[str, ...]:
    """Folders of the PATH. First where users add packages: python, and the image's own commands in that environment."""
    additions, toolkit = own_folders(image, key)
    return (additions, base.executable.rpartition("/")[0], toolkit, *_SYSTEM_PATH)


def own_folders(image: Image, key: str) -> tuple[str, str]:
    """Return the folders of the PATH that every base gets: of what users add, and of the toolkit."""
    return f"{user_overlay.environment(image, key)}/bin", f"{image.toolkit_home}/bin"


def locked_versions(lock: bytes | Path) -> dict[str, str]:
    """Package -> version of a requirements file."""
    lines = (
        line.split()
        for line in content_of(lock).decode().splitlines()
        if line and line[0] not in " #"
    )
    return {
        name: version
        for name, _, version in (words[0].rstrip("\\").partition("==") for words in lines)
    }


def without_packages(lock: bytes, names: Container[str]) -> bytes:
    """Return a requirements file without the blocks (name line, hash lines, comments below it) of these packages."""
    lines, skipping = [], False
    for line in lock.decode().splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            skipping = line.split("==")[0].strip() in names
        if not skipping:
            lines.append(line)
    return "".join(lines).encode()


def overlay_files(
    image: Image, base: BaseContext, locks: Mapping[str, bytes], missing: Collection[str]
) -> dict[str, bytes]:
    """Path in the context -> content, of what the last stage puts into /opt/truetag."""
    folder = TEMPLATES / "additions"
    additions = user_overlay.environment(image, overlay_key(image, locks))
    # What python.sh says where pip does not install a package: `NAME<TAB>what to take instead`.
    instead = {name: row.instead for name, row in packages().items() if row.instead} | dict(
        image.unfit
    )
    hints = "".join(f"{name}\t{text}\n" for name, text in instead.items())
    settings = f"home={user_overlay.HOME}\nimage_python={base.executable}\nadditions={additions}\n"
    return {
        "additions/python.sh": (folder / "python.sh").read_bytes(),
        "additions/create.py": (folder / "create.py").read_bytes(),
        "additions/constraints.txt": constraints(image, locks, missing),
        "additions/hints": hints.encode(),
        "additions/settings": settings.encode(),
    }


def constraints(image: Image, locks: Mapping[str, bytes], missing: Collection[str]) -> bytes:
    """A constraints file of torch, what it loads of CUDA, all with kernels for this torch, and what has none for it."""
    torch = image.pin("torch")
    minor = str(Minor.parse(".".join(torch.version.split(".")[:2]))) if torch else ""
    # Releases that are built for this torch, of packages that publish one for each: no other need be tried.
    lines = {
        name: row.torch[minor]
        for name, row in packages().items()
        if minor in row.torch and not image.pin(name)
    }
    lines |= user_overlay.held_versions(
        image, locked_versions(locks.get(f"{image.layers[0]}.txt", b"")), missing
    )
    text = "".join(f"{name}=={lines[name]}\n" for name in sorted(lines))
    return f"{_CONSTRAINTS_HEAD.format(name=image.name)}{text}".encode()


def overlay_key(image: Image, locks: Mapping[str, bytes]) -> str:
    """Tells what is installed in an image's Python layers from what another lock installs."""
    return sha256(b"\0".join(locks.get(f"{layer}.txt", b"") for layer in image.layers))[:12]
