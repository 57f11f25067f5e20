"""What is in an image, as CycloneDX: Debian packages, toolkit wheels, Python distributions and what they bundle."""

from __future__ import annotations

import importlib.resources
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from packageurl import PackageURL
from packaging.utils import canonicalize_name

from images.engine import ContainerSpec, Engine
from images.errors import Problem, UserError

if TYPE_CHECKING:  # slow to import
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component

_FILE = "dev.truetag:file"
_SECONDS = 600.0
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/")
"""Serial numbers come from it and the image's digest: the same image has the same SBOM, byte by byte."""


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A library of others that a wheel carries. `version` is empty where the file does not tell it."""

    name: str
    version: str
    files: tuple[str, ...]
    """Below site-packages: the library itself, or those that it is linked into."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package of an image. `licence` is an SPDX expression, empty where none is declared."""

    name: str
    version: str
    licence: str = ""
    architecture: str = ""
    source: str = ""
    """Debian's source package, where it is called otherwise."""
    bundled: tuple[Bundled, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Packages:
    """Everything that is installed in an image."""

    python: tuple[Package, ...]
    toolkit: tuple[Package, ...]
    debian: tuple[Package, ...]
    os: Mapping[str, str]
    """ID, VERSION_ID and VERSION_CODENAME of /etc/os-release."""


def read(engine: Engine, reference: str) -> Packages:
    """Read the packages in a container with no network. Raises UserError when its Python can't run."""
    script = importlib.resources.files("images.publish").joinpath("read_packages.py").read_text()
    spec = ContainerSpec(reference, ["python3", "-I", "-c", script], name=f"{reference} (its packages)")
    with engine.container(spec) as box:
        done = box.run(timeout=_SECONDS)
    if done.exit.code != 0:
        cause = f"its packages can't be read: {(done.stderr or done.stdout).strip()[-300:]}"
        raise UserError(Problem(where=reference, cause=cause, then="an image needs a python3 on its PATH"), code=1)
    return packages_of(json.loads(done.stdout))


def packages_of(found: Mapping[str, Any]) -> Packages:
    """What `read_packages.py` printed."""
    kinds = {kind: tuple(map(_package, found[kind])) for kind in ("python", "toolkit", "debian")}
    return Packages(**kinds, os=dict(found["os"]))


def _package(row: Mapping[str, Any]) -> Package:
    carried = (Bundled(**{**one, "files": tuple(one["files"])}) for one in row.get("bundled", ()))
    return Package(**{**row, "bundled": tuple(carried)})


def cyclonedx(packages: Packages, *, name: str, digest: str, created: datetime) -> dict[str, Any]:
    """The SBOM of an image, as CycloneDX 1.6 in JSON. `digest` is the image's. Pure: the clock stays outside."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    root = Component(type=ComponentType.CONTAINER, name=name, version=digest, bom_ref=digest)
    serial = uuid.uuid5(_NAMESPACE, digest)
    bom = Bom(serial_number=serial, metadata=BomMetaData(component=root, timestamp=created))
    components = list(_components(packages))
    for component in components:
        bom.components.add(component)
    bom.register_dependency(root, components)
    found: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return found


def versions(bom: Mapping[str, Any]) -> dict[str, str]:
    """Canonical distribution name -> version (without its local part) of the Python packages in an SBOM."""
    found: dict[str, str] = {}
    for component in bom.get("components", ()):
        url = PackageURL.from_string(component["purl"])
        if url.type == "pypi" and "toolkit" not in url.qualifiers and url.version:
            found[canonicalize_name(url.name)] = url.version.partition("+")[0]
    return found


def _components(packages: Packages) -> Iterator[Component]:
    from cyclonedx.contrib.license.factories import LicenseFactory

    licences = LicenseFactory()
    for package in packages.python:
        yield _python(package, {}, licences)
    for package in packages.toolkit:
        yield _python(package, {"toolkit": "true"}, licences)
    family = packages.os.get("ID") or "debian"
    for package in packages.debian:
        qualifiers = {"arch": package.architecture, "distro": _distro(packages.os)}
        qualifiers.update({"upstream": package.source} if package.source else {})
        url = PackageURL("deb", family, package.name, package.version, qualifiers)
        yield _component(package, url)


def _python(package: Package, qualifiers: Mapping[str, str], licences: LicenseFactory) -> Component:
    url = PackageURL("pypi", None, canonicalize_name(package.name), package.version, dict(qualifiers))
    component = _component(package, url)
    if package.licence:
        component.licenses.add(licences.make_from_string(package.licence))
    for carried in package.bundled:
        component.components.add(_bundled(carried, url))
    return component


def _bundled(carried: Bundled, holder: PackageURL) -> Component:
    """Without a version there is no address: a scanner must not take it for any."""
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType

    url = PackageURL("generic", None, carried.name, carried.version) if carried.version else None
    return Component(
        type=ComponentType.LIBRARY,
        name=carried.name,
        version=carried.version or None,
        purl=url,
        bom_ref=f"{holder.to_string()}#{carried.name}{'@' if carried.version else ''}{carried.version}",
        properties=[Property(name=_FILE, value=file) for file in carried.files],
    )


def _component(package: Package, url: PackageURL) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.LIBRARY, name=package.name, version=package.version, purl=url, bom_ref=url.to_string()
    )


def _distro(os: Mapping[str, str]) -> str:
    return "-".join(filter(None, (os.get("ID"), os.get("VERSION_ID")))) or "unknown"
