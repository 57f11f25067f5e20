"""The SBOM of a real image lists exactly what dpkg, pip and a walk over its ELF files find."""

import json
from datetime import UTC, datetime

import pytest
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from images.engine import ContainerSpec, Engine, ImageInfo
from images.publish import sbom

pytestmark = pytest.mark.engine

LIBRARIES = """
import json, os
found = []
for folder, _, names in os.walk('/opt/venv'):
    for name in names:
        path = os.path.join(folder, name)
        if '.so' in name and not os.path.islink(path) and open(path, 'rb').read(4) == b'\\x7fELF':
            found.append(path.partition('/site-packages/')[2])
print(json.dumps(found))
"""
FOREIGN = ("libgomp", "libgfortran", "libquadmath", "libscipy_openblas", "libopenblas", "libiomp5")
"""By their names alone, these are nobody's own."""


def asked(engine: Engine, reference: str, *command: str) -> str:
    with engine.container(ContainerSpec(reference, list(command), user="0")) as box:
        done = box.run(timeout=300)
    assert done.code == 0, done.stderr
    return done.stdout


def test_the_sbom_is_what_is_in_the_image(engine: Engine, base_image: ImageInfo) -> None:
    reference = base_image.handle
    packages = sbom.read_packages(engine, reference)
    content = sbom.make_sbom(
        packages, name="x", digest="sha256:00", created=datetime(2026, 1, 1, tzinfo=UTC)
    )
    rows = [(PackageURL.from_string(row["purl"]), row) for row in content["components"]]
    installed = asked(
        engine,
        reference,
        "dpkg-query",
        "-W",
        "-f",
        "${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\\n",
    )
    debian = {tuple(line.split()[1:]) for line in installed.splitlines() if line.startswith("ii")}
    assert {
        (url.name, url.version, url.qualifiers["arch"]) for url, _ in rows if url.type == "deb"
    } == debian
    listed = json.loads(
        asked(engine, reference, "/opt/venv/bin/python", "-m", "pip", "list", "--format", "json")
    )
    python = {(canonicalize_name(row["name"]), row["version"]) for row in listed}
    found = {
        (url.name, url.version)
        for url, _ in rows
        if url.type == "pypi" and "toolkit" not in url.qualifiers
    }
    assert found == python
    files = set(json.loads(asked(engine, reference, "python3", "-c", LIBRARIES)))
    nested = [inner for _, row in rows for inner in row.get("components", ())]
    carried = {(inner["name"], one["value"]) for inner in nested for one in inner["properties"]}
    assert {file for _, file in carried} <= files
    foreign = {
        file for file in files if ".libs/" in file or file.rpartition("/")[2].startswith(FOREIGN)
    }
    by_name = {file for name, file in carried if file.rpartition("/")[2].startswith(name)}
    assert by_name == foreign
    inside = {url.name: {inner["name"] for inner in row.get("components", ())} for url, row in rows}
    assert {"CUTLASS", "oneDNN", "libgomp"} <= inside["torch"]
    assert [name for name, names in inside.items() if "LLVM" in names] == ["triton"]
