"""What is in an image, as CycloneDX: Debian packages, toolkit wheels, Python distributions and what they bundle."""

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from images.engine import Engine
from images.validation import own_python

Packages = Mapping[str, Any]
"""What validate/survey/packages.py prints: rows of `python`, `toolkit` and `debian`, and `os` of /etc/os-release."""
_FILE = "dev.truetag:file"
_SECONDS = 600.0
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/")
"""Serial numbers come from it and the image's digest: the same image has the same SBOM, byte by byte."""


def read(engine: Engine, reference: str) -> Packages:
    """Read the packages, of whose image nothing is run. Raises UserError where it has no Python with packages."""
    return own_python.query_files(engine, engine.inspect(reference), "packages", timeout=_SECONDS)


def cyclonedx(packages: Packages, *, name: str, digest: str, created: datetime) -> dict[str, Any]:
    """The SBOM of an image, as CycloneDX 1.6 in JSON. `digest` is the image's. Pure: the clock stays outside."""
    root = Component(type=ComponentType.CONTAINER, name=name, version=digest, bom_ref=digest)
    metadata = BomMetaData(component=root, timestamp=created)
    components = list(_components(packages))
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, digest), metadata=metadata, components=components
    )
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
    licences = LicenseFactory()
    for kind, qualifiers in (("python", {}), ("toolkit", {"toolkit": "true"})):
        for row in packages[kind]:
            url = PackageURL(
                "pypi", None, canonicalize_name(row["name"]), row["version"], qualifiers
            )
            component = _component(row["name"], row["version"], url)
            if row["licence"]:
                component.licenses.add(licences.make_from_string(row["licence"]))
            component.components.update(_bundled(one, url) for one in row.get("bundled", ()))
            yield component
    family = packages["os"].get("ID") or "debian"
    distro = (
        "-".join(filter(None, (packages["os"].get(key) for key in ("ID", "VERSION_ID"))))
        or "unknown"
    )
    for row in packages["debian"]:
        qualifiers = {"arch": row["architecture"], "distro": distro}
        qualifiers |= (
            {"upstream": row["source"]} if row["source"] else {}
        )  # Debian's source package
        yield _component(
            row["name"],
            row["version"],
            PackageURL("deb", family, row["name"], row["version"], qualifiers),
        )


def _bundled(row: Mapping[str, Any], holder: PackageURL) -> Component:
    """A library of others in a wheel. Without a version it has no address: a scanner must not take it for any."""
    name, version = row["name"], row["version"]
    component = _component(
        name, version, PackageURL("generic", None, name, version) if version else None
    )
    component.bom_ref.value = f"{holder.to_string()}#{name}{'@' if version else ''}{version}"
    component.properties.update(Property(name=_FILE, value=file) for file in row["files"])
    return component


def _component(name: str, version: str, url: PackageURL | None) -> Component:
    reference = url.to_string() if url else None
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version or None, purl=url, bom_ref=reference
    )
