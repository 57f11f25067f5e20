"""The packages of an image, as its CycloneDX SBOM lists them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packageurl import PackageURL
from packaging.utils import canonicalize_name

DEB, PYPI = "deb", "pypi"
KINDS = (DEB, PYPI)
"""Types of package URLs that an image has: what is known of one says nothing of the other."""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """One package. `source`: Debian's source package, where it is called otherwise."""

    kind: str
    name: str
    version: str
    source: str = ""
    distro: str = ""
    """`debian-12`, say; empty for a Python package."""

    @property
    def purl(self) -> str:
        """Without qualifiers: what statements name."""
        namespace = self.distro.partition("-")[0] if self.kind == DEB else None
        return PackageURL(self.kind, namespace or None, self.name, self.version).to_string()


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All packages of one image."""

    image: str
    digest: str
    """Of the image: the one that verdicts name."""
    packages: Sequence[Installed]

    def of(self, kind: str) -> tuple[Installed, ...]:
        return tuple(one for one in self.packages if one.kind == kind)


def read(content: bytes) -> Inventory:
    """Read an SBOM. Raises ValueError, LookupError, TypeError for what is none of ours."""
    bom = json.loads(content)
    root = bom["metadata"]["component"]
    packages = tuple(_packages(bom))
    return Inventory(image=str(root["name"]), digest=str(root["version"]), packages=packages)


def canonical(kind: str, name: str) -> str:
    """A name as it is compared."""
    return canonicalize_name(name) if kind == PYPI else name


def _packages(bom: dict[str, object]) -> Iterator[Installed]:
    components = bom.get("components", [])
    for component in components if isinstance(components, list) else []:
        url = PackageURL.from_string(component["purl"])
        if url.type in KINDS and url.version:
            found = url.qualifiers if isinstance(url.qualifiers, dict) else {}
            yield Installed(
                kind=url.type,
                name=canonical(url.type, url.name),
                version=url.version,
                source=str(found.get("upstream", "")),
                distro=str(found.get("distro", "")),
            )
