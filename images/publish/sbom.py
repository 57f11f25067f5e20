"""Write the SBOM of an image (CycloneDX): its Debian packages, toolkit wheels, Python packages."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
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
"""What validate/survey/packages.py prints: lists of packages under `python`, `toolkit` and
`debian`, and the content of /etc/os-release under `os`."""
_FILE = "dev.truetag:file"
_SECONDS = 600.0
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/")
"""Serial numbers are made from it and the image's digest: an image always gets the same SBOM."""


def read_packages(engine: Engine, reference: str, *, bundled: bool = True) -> Packages:
    """Return the packages of an image, without running anything of it.

    Without `bundled`, the libraries that wheels bundle are left out, which takes much less time.
    Raises UserError if the image has no Python with packages.
    """
    image = engine.inspect(reference)
    options = [] if bundled else ["--versions"]
    return own_python.query_files(engine, image, "packages", *options, timeout=_SECONDS)


def make_sbom(packages: Packages, *, name: str, digest: str, created: datetime) -> dict[str, Any]:
    """Return the SBOM of an image in the JSON form of CycloneDX 1.6.

    `packages` comes from `read_packages`: lists of packages, and what /etc/os-release says. `name`
    is the image's, `digest` the image ID, and `created` the date to publish it with. The document's
    own number is made from the digest, so it is always the same for an image.
    """
    image = Component(type=ComponentType.CONTAINER, name=name, version=digest, bom_ref=digest)
    components = [
        *python_components(packages["python"], {}),
        # Marked, so that `read_versions` can leave them out.
        *python_components(packages["toolkit"], {"toolkit": "true"}),
        *debian_components(packages["debian"], packages["os"]),
    ]
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, digest),
        metadata=BomMetaData(component=image, timestamp=created),
        components=components,
    )
    bom.register_dependency(image, components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return document


def read_versions(bom: Mapping[str, Any]) -> dict[str, str]:
    """Return the Python packages in an SBOM: canonical name -> version, without its local part.

    Wheels of the CUDA toolkit are left out.
    """
    packages: dict[str, str] = {}
    for component in bom.get("components", ()):
        url = PackageURL.from_string(component["purl"])
        if url.type == "pypi" and "toolkit" not in url.qualifiers and url.version:
            packages[canonicalize_name(url.name)] = url.version.partition("+")[0]
    return packages


def python_components(
    packages: Iterable[Mapping[str, Any]], qualifiers: Mapping[str, str]
) -> Iterator[Component]:
    """Yield a component for each Python package, with its licence and the libraries in its wheel.

    Each package has the keys `name`, `version` and `licence` (empty: not known), and may have
    `bundled`: the third-party libraries in its wheel. `qualifiers` are added to the address (purl)
    of each package.
    """
    licences = LicenseFactory()
    for package in packages:
        name, version = package["name"], package["version"]
        url = PackageURL("pypi", None, canonicalize_name(name), version, dict(qualifiers))
        component = make_component(name, version, url)
        if package["licence"]:
            component.licenses.add(licences.make_from_string(package["licence"]))
        for library in package.get("bundled", ()):
            component.components.add(bundled_component(library, url))
        yield component


def debian_components(
    packages: Iterable[Mapping[str, Any]], os_release: Mapping[str, str]
) -> Iterator[Component]:
    """Yield a component for each Debian package. `os_release` is the image's /etc/os-release.

    Each package has the keys `name`, `version`, `architecture` and `source` (empty: the source
    package has the same name). Their addresses (purls) read
    `pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12`.
    """
    family = os_release.get("ID") or "debian"
    release = [os_release[key] for key in ("ID", "VERSION_ID") if os_release.get(key)]
    distro = "-".join(release) or "unknown"
    for package in packages:
        name, version = package["name"], package["version"]
        qualifiers = {"arch": package["architecture"], "distro": distro}
        if package["source"]:
            # Debian lists vulnerabilities by the name of the source package.
            qualifiers["upstream"] = package["source"]
        yield make_component(name, version, PackageURL("deb", family, name, version, qualifiers))


def bundled_component(library: Mapping[str, Any], holder: PackageURL) -> Component:
    """Return the SBOM component of a third-party library that is bundled in a wheel.

    `library` has the keys `name`, `version` (empty: not known) and `files`. `holder` is the address
    (purl) of the wheel. Without a version the component has no address (purl), so that no scanner
    mistakes it for some version.
    """
    name, version = library["name"], library["version"]
    url = PackageURL("generic", None, name, version) if version else None
    component = make_component(name, version, url)
    suffix = f"@{version}" if version else ""
    # Its ID in the SBOM. Several wheels may contain the same library, so it begins with the wheel.
    component.bom_ref.value = f"{holder.to_string()}#{name}{suffix}"
    for file in library["files"]:
        component.properties.add(Property(name=_FILE, value=file))
    return component


def make_component(name: str, version: str, url: PackageURL | None) -> Component:
    """Return a component of type library. Its address, if it has one, is its ID in the SBOM."""
    reference = url.to_string() if url else None
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version or None, purl=url, bom_ref=reference
    )
