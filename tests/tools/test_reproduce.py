"""Two builds side by side: which layers differ, in which file, and how."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from tests.support.checkout import ROOT
from tools import cold_builds
from tools.reproduce import Layer, Reproduction, beside, changed_file, difference, first_byte

FILE = {"kind": "0", "mode": "644", "owner": "0:0", "time": 1704067200, "size": 3, "attributes": {}, "sha256": "one"}


def changed(**parts: Any) -> Mapping[str, Any]:
    return {**FILE, **parts}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (changed(time=1704067261), "etc/x: time 1704067200 and 1704067261"),
        (changed(mode="755"), "etc/x: mode 644 and 755"),
        (changed(owner="1001:0"), "etc/x: owner 0:0 and 1001:0"),
        (changed(size=4, sha256="two"), "etc/x: size 3 and 4, sha256 one and two"),
        (changed(attributes={"SCHILY.xattr.user.a": "b"}), "etc/x: attributes {} and {'SCHILY.xattr.user.a': 'b'}"),
    ],
)
def test_what_differs_of_a_file_is_named(second: Mapping[str, Any], said: str) -> None:
    assert difference({"etc/x": FILE}, {"etc/x": second}) == said


def test_the_first_by_path_is_told_and_the_others_counted() -> None:
    one = {"b": FILE, "a": FILE, "c": FILE, "only": FILE}
    other = {"b": changed(mode="0"), "a": FILE, "c": changed(mode="0")}
    assert difference(one, other) == "b: mode 644 and 0; 2 more files differ"
    assert difference({}, {"a": FILE}) == "a is in the second alone"
    assert difference({"a": FILE, "b": FILE}, {"b": FILE, "a": FILE}) == "the same files in another order"
    assert difference({"a": FILE}, {"a": FILE}) == "in how the tar is written"


def test_the_first_byte_that_differs_is_named() -> None:
    for other, at in ((b"abXd", 2), (b"Xbcd", 0), (b"abcX", 3), (b"abc", 3), (b"", 0)):
        assert first_byte(b"abcd", other) == first_byte(other, b"abcd") == at
    other_bytes = changed(sha256="two")
    assert changed_file({"a": FILE, "b": FILE, "c": FILE}, {"a": FILE, "b": other_bytes, "c": other_bytes}) == "b"


def test_what_another_engine_gave_is_compared() -> None:
    layers = tuple(Layer(step=name, first=name, second=name) for name in ("debian", "torch"))
    found = Reproduction(image="x", engine="26.1", id="sha256:1", seconds=(1, 1), layers=layers)
    theirs = json.loads(json.dumps(asdict(found)))
    assert beside(found, theirs) == []
    theirs["layers"][1]["first"], theirs["id"] = "y", "sha256:2"
    assert beside(found, theirs) == ["torch", "image ID"]


def test_the_second_build_takes_no_wheel_that_the_first_made() -> None:
    dockerfile = b"RUN --mount=type=cache,id=truetag-uv,target=/run/uv x\n"
    context = cold_builds.with_own_wheels({"Dockerfile": dockerfile}, "abc")
    assert context["Dockerfile"] == b"RUN --mount=type=cache,id=truetag-uv-abc,target=/run/uv x\n"
    golden = ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile"
    named = cold_builds.with_own_wheels({"Dockerfile": golden}, "abc")["Dockerfile"]
    assert isinstance(named, bytes) and named.count(b"id=truetag-uv-abc,") == golden.read_bytes().count(b"type=cache")
