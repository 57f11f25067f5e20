"""What an image gives to whoever adds packages: constraints, and a place that needs no root. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from images.config.additions import packages
from images.config.names import Minor
from images.config.paths import TEMPLATES
from images.context.base_context import BaseContext
from images.host.hashing import sha256
from images.planning import home
from images.planning.image import Image

_HEAD = """\
# What pip and uv may not move in {name} (PIP_CONSTRAINT, UV_CONSTRAINT): torch, CUDA's libraries and kernels.
# A package that wants others is refused: take a release of it that fits this torch, or an image with its torch.
"""
_KEPT = ("transformers", "datasets")
"""What pip is asked for beside everything: they are parted by a huggingface-hub of another series."""


def files(image: Image, base: BaseContext, locks: Mapping[str, bytes], missing: Collection[str]) -> dict[str, bytes]:
    """Path in the context -> content, of what the last stage puts into /opt/truetag."""
    scripts = {name: (TEMPLATES / "additions" / name).read_bytes() for name in ("python.sh", "create.py")}
    told = {"constraints.txt": constraints(image, locks, missing), "hints": _hints()}
    made = {**scripts, **told, "settings": _settings(image, base, locks)}
    return {f"additions/{name}": content for name, content in made.items()}


def constraints(image: Image, locks: Mapping[str, bytes], missing: Collection[str]) -> bytes:
    """A constraints file of torch, what it loads of CUDA, and all that has kernels for this torch."""
    held = home.held(image, _versions(locks.get(f"{image.layers[0]}.txt", b"")), missing)
    lines = {**_fitting(image), **held}
    return (_HEAD.format(name=image.name) + "".join(f"{name}=={lines[name]}\n" for name in sorted(lines))).encode()


def _fitting(image: Image) -> dict[str, str]:
    """Releases that are built for this torch, of packages that publish one for each: no other need be tried."""
    torch = image.pin("torch")
    minor = str(Minor.parse(".".join(torch.version.split(".")[:2]))) if torch else ""
    return {name: row.torch[minor] for name, row in packages().items() if minor in row.torch and not image.pin(name)}


def _hints() -> bytes:
    """What python.sh says where pip does not install a package: `NAME<TAB>what to take instead`."""
    return "".join(f"{name}\t{row.instead}\n" for name, row in packages().items() if row.instead).encode()


def _versions(lock: bytes) -> dict[str, str]:
    lines = (line.split()[0] for line in lock.decode().splitlines() if "==" in line and line[0] not in " #")
    return {name: version.rstrip("\\") for name, _, version in (line.partition("==") for line in lines)}


def _settings(image: Image, base: BaseContext, locks: Mapping[str, bytes]) -> bytes:
    """What templates/additions/python.sh reads."""
    kept = " ".join(f"{pin.name}=={pin.version}" for pin in map(image.pin, _KEPT) if pin)
    additions = home.environment(image, key(image, locks))
    return f"home={home.HOME}\nimage_python={base.executable}\nadditions={additions}\nkept='{kept}'\n".encode()


def key(image: Image, locks: Mapping[str, bytes]) -> str:
    """Tells what is installed in an image's Python layers from what another lock installs."""
    return sha256(b"\0".join(locks.get(f"{layer}.txt", b"") for layer in image.layers))[:12]
