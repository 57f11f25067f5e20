"""Image + lock into a build context: a dict of path to bytes. Pure: no clock, no engine, no environment.

The same dict is written to disk (`nox -s render`), compared with what lies there, or packed for the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from images.config.paths import TEMPLATES
from images.config.platforms import Platform
from images.context import additions, pruner
from images.context.base_context import BaseContext
from images.context.labels import labels
from images.context.templates import EPOCH, environment, step_macros
from images.planning import home, profiles
from images.planning.image import Image

USER = home.USER
LIBRARIES = "cuda"
"""The stage of NVIDIA's libraries, below torch's."""

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OFFLINE = b"""\
unset UV_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL
export UV_OFFLINE=1 UV_DEFAULT_INDEX=file:///run/no-index UV_FIND_LINKS=/run/wheels
"""
"""Offline alone is not enough: uv then takes what its cache remembers of an index, and lacks the files."""

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


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What only the machine that builds can know."""

    host: Mapping[str, bytes] = field(default_factory=lambda: {"host/env": b""})
    """Files under host/: CA bundle and index settings, mounted by steps and kept in no layer."""
    wheels: Mapping[str, Path] = field(default_factory=dict)
    """File name -> file, of wheels that no index has."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Optional package -> why this image goes without it."""
    offline: bool = False
    """`wheels` holds everything that is installed: no step reaches an index."""
    suite: Mapping[str, bytes] = field(default_factory=dict)
    """The suite and the image's claims (run.suite_files), for the commands `validate` and `doctor` in the image."""


def render(
    image: Image, locks: Mapping[str, bytes], base_context: BaseContext, extras: Extras | None = None
) -> Context:
    """The whole context of one image.

    `locks` holds `torch.txt` and the like, one a layer, and `tools.txt`. Lines of packages that the base keeps
    are taken out. Everything that differs between images of one torch comes after what they share.
    """
    extras = extras or Extras()
    elsewhere = base_context.kept | image.extended(extras.wheels).keys()
    files: Context = {
        # The toolkit and the tools are no packages of the environment: what the base has does not stand in for them.
        f"locks/{name}": less(content, elsewhere) if name.removesuffix(".txt") in image.layers else content
        for name, content in locks.items()
    }
    files.update(parted(files, image.layers[0], image.library_layers))
    scripts = sorted(path for path in (TEMPLATES / "scripts").iterdir() if path.is_file())
    files.update({f"scripts/{path.name}": path.read_bytes() for path in scripts})
    if image.platform is not Platform.AMD64:
        files["scripts/installer.sh"] = (TEMPLATES / "platforms" / "installer.sh").read_bytes()
    files.update(pruner.files(image.pruning) if image.pruning else ())
    if image.entrypoint:
        files[f"entrypoints/{image.entrypoint}"] = (TEMPLATES / "entrypoints" / image.entrypoint).read_bytes()
    files.update(extras.host)
    files.update({f"suite/{name}": content for name, content in extras.suite.items()})
    files.update(additions.files(image, base_context, locks, extras.missing))
    if extras.offline:
        files["host/env"] = offline(files["host/env"])
    files["wheels/README"] = b"Wheels that no index has: official prebuilt ones, or from --wheelhouse.\n"
    files.update({f"wheels/{name}": path for name, path in extras.wheels.items()})
    values = _environment(image, base_context, additions.key(image, locks))
    files["Dockerfile"] = _dockerfile(image, files, base_context, extras, values).encode()
    return dict(sorted(files.items()))


def offline(environment: bytes | Path) -> bytes:
    """host/env of a build whose steps reach no network, and find their wheels in /run/wheels."""
    return b"%s%s" % (content_of(environment), _OFFLINE)


def content_of(file: bytes | Path) -> bytes:
    """A file of a context, wherever its bytes are."""
    return file if isinstance(file, bytes) else file.read_bytes()


def _dockerfile(
    image: Image, files: Context, base_context: BaseContext, extras: Extras, values: Mapping[str, str]
) -> str:
    macros = step_macros(offline=extras.offline, pruning=image.pruning is not None)
    return (
        environment()
        .get_template("Dockerfile.j2")
        .render(
            image=image,
            torch=image.pin("torch"),
            base=base_context,
            user=USER,
            layers=tuple(_stages(image, files, extras)),
            environment=values,
            additions=home.python(image).rpartition("/")[0],
            labels=labels(image, base_context, extras.missing),
            installer=next((name for name in sorted(extras.wheels) if name.startswith("uv-")), ""),
            epoch=EPOCH,
            native_installer=image.platform is not Platform.AMD64,
            **macros,
            suite=bool(extras.suite),
        )
    )


def parted(files: Context, bottom: str, groups: Sequence[Sequence[str]] = ()) -> Context:
    """The bottom layer's lock in two: NVIDIA's libraries, and torch above them.

    They are the two halves of an image. Engines make, hash, fetch and unpack layers side by side, and images for single
    architectures have the same libraries as long as those are not pruned. Libraries that a pattern of a group matches,
    the first group first, have a lock of their own: what moves seldom stays the same layer when the rest moves.
    """
    whole = content_of(files[f"locks/{bottom}.txt"])
    names = [line.split("==")[0] for line in whole.decode().splitlines() if line and not line.startswith((" ", "#"))]
    libraries = frozenset(name for name in names if name.startswith("nvidia-"))
    if not libraries or libraries == frozenset(names):
        return {}
    found: Context = {f"locks/{bottom}.txt": less(whole, libraries)}
    for number, patterns in enumerate([*groups, ["*"]], 1):
        chosen = frozenset(name for name in libraries if any(fnmatchcase(name, pattern) for pattern in patterns))
        stage = LIBRARIES if number > len(groups) else f"{LIBRARIES}-{number}"
        if chosen:
            found[f"locks/{stage}.txt"] = less(whole, frozenset(names) - chosen)
        libraries -= chosen
    return found


def library_stages(files: Context, image: Image) -> tuple[str, ...]:
    """The stages that `parted` gave locks of their own, bottom first."""
    names = [*(f"{LIBRARIES}-{number}" for number in range(1, len(image.library_layers) + 1)), LIBRARIES]
    return tuple(name for name in names if f"locks/{name}.txt" in files)


def libraries(index: str, *, name: str = LIBRARIES, below: str = "system", pruned: bool = False) -> Stage:
    """A stage that `parted` gave a lock of its own."""
    return Stage(
        name=name,
        below=below,
        holds=("NVIDIA's libraries",),
        lock=True,
        index=index,
        pruned=pruned,
        wheels_kept=False,
    )


def _stages(image: Image, files: Context, extras: Extras) -> Iterator[Stage]:
    below, extended = "system", image.extended(extras.wheels)
    for name in library_stages(files, image):
        pruned = bool(image.pruning and image.pruning.nvidia)
        yield libraries("" if extras.offline else index(image), name=name, below=below, pruned=pruned)
        below = name
    for name in image.layers:
        pins = [pin for pin in image.pins if pin.layer == name]
        # The lock's own wheels lie there too in a build without a network, and are installed by the lock.
        distributions = {pin.name.replace("-", "_") for pin in pins if not pin.locked or pin.name in extended}
        lock = files.get(f"locks/{name}.txt", b"")
        yield Stage(
            name=name,
            below=below,
            holds=tuple(f"{pin.name} {pin.version}" for pin in pins if pin.name not in extras.missing),
            lock=names_something(lock),
            index="" if extras.offline else index(image),
            wheels=tuple(file for file in sorted(extras.wheels) if file.split("-")[0] in distributions),
            # Below what a profile adds, so that the toolkit's layer is shared too.
            toolkit_above=name == [layer for layer in image.layers if layer != profiles.LAYER][-2],
            from_source=name == profiles.LAYER and bool(image.from_source),
            wheels_kept=name != image.layers[0],
        )
        below = name


def index(image: Image) -> str:
    """Arguments of the installer for images whose torch another index has."""
    return f" --index {image.index} --index-strategy unsafe-best-match" if image.index else ""


def _environment(image: Image, base_context: BaseContext, key: str) -> dict[str, str]:
    """ENV of the final stage: it differs between images, so no shared layer may see it."""
    return {
        **image.environment,
        **home.variables(image),
        "PATH": ":".join(search_path(image, base_context, key)),
        "HOME": home.HOME,
        # torch.compile asks who the user is, and an unknown uid has no name (pytorch#140765).
        "USER": "trainer",
        "LANG": "C.UTF-8",
    }


def search_path(image: Image, base_context: BaseContext, key: str) -> tuple[str, ...]:
    """Folders of the PATH. First where users add packages: python, and the image's own commands in that environment."""
    return (
        f"{home.environment(image, key)}/bin",
        base_context.executable.rpartition("/")[0],
        f"{image.toolkit_home}/bin",
        *_SYSTEM_PATH,
    )


def names_something(lock: bytes | Path) -> bool:
    """Whether a requirements file holds a package."""
    return any(line and not line.startswith(("#", " ")) for line in content_of(lock).decode().splitlines())


def less(lock: bytes, kept: frozenset[str]) -> bytes:
    """A requirements file without the blocks (name line, hash lines, comments below it) of kept packages."""
    lines, skipping = [], False
    for line in lock.decode().splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            skipping = line.split("==")[0].strip() in kept
        if not skipping:
            lines.append(line)
    return "".join(lines).encode()
