"""The SPDX document: valid by SPDX's own library, and the same packages as the CycloneDX SBOM."""

import json
from datetime import UTC, datetime

from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from images.publish import sbom
from images.publish.statements import spdx

FOUND = {
    "python": [
        {"name": "torch", "version": "2.7.1+cu126", "licence": "BSD-3-Clause"},
        {"name": "odd_one", "version": "1", "licence": "whatever I like"},
        {"name": "two", "version": "1", "licence": "MIT OR Apache-2.0"},
    ],
    "toolkit": [{"name": "odd-one", "version": "1", "licence": ""}],
    "debian": [{"name": "libc6", "version": "2.36-9+deb12u13", "architecture": "amd64", "source": "glibc"}],
    "os": {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"},
}


def bom() -> bytes:
    digest, created = "sha256:" + "ab" * 32, datetime(2026, 11, 21, 2, 20, tzinfo=UTC)
    return sbom.cyclonedx(sbom.packages_of(FOUND), name="cu126-torch27", digest=digest, created=created)


def test_spdx_own_library_finds_no_fault() -> None:
    document = JsonLikeDictParser().parse(spdx.document(bom()))
    assert validate_full_spdx_document(document) == []


def test_its_validator_is_one_that_finds_faults() -> None:
    broken = spdx.document(bom())
    broken["packages"][1]["SPDXID"] = broken["packages"][2]["SPDXID"]
    assert validate_full_spdx_document(JsonLikeDictParser().parse(broken))


def test_it_lists_what_the_sbom_lists() -> None:
    found = spdx.document(bom())
    assert spdx.urls(found) == spdx.cyclonedx_urls(bom()) and len(spdx.urls(found)) == 5
    licences = {package["name"]: package.get("licenseDeclared") for package in found["packages"]}
    assert licences["torch"] == "BSD-3-Clause" and licences["two"] == "MIT OR Apache-2.0"
    assert licences["odd_one"] == licences["libc6"] == "NOASSERTION"


def test_the_same_sbom_gives_the_same_document() -> None:
    assert json.dumps(spdx.document(bom())) == json.dumps(spdx.document(bom()))


def test_components_inside_components_are_contained_in_them() -> None:
    data = json.loads(bom())
    data["components"][0]["components"] = [{"type": "library", "name": "libgomp", "version": "13"}]
    found = spdx.document(json.dumps(data).encode())
    names = {package["SPDXID"]: package["name"] for package in found["packages"]}
    rows = {(names.get(row["spdxElementId"]), names[row["relatedSpdxElement"]]) for row in found["relationships"]}
    assert (data["components"][0]["name"], "libgomp") in rows and ("cu126-torch27", "libgomp") not in rows
    assert validate_full_spdx_document(JsonLikeDictParser().parse(found)) == []
