"""Newer releases: which are not known, and their rows put where they belong."""

import tomllib
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from images.errors import UserError
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from tools import releases

FACTS = SOURCES.facts
TEXT = (ROOT / "images" / "data" / "facts.yaml").read_text()


def metadata(name: str, version: str) -> str:
    """Return the METADATA of a release that needs torch."""
    return f"Name: {name}\nVersion: {version}\nRequires-Python: >=3.10\nRequires-Dist: torch\n"


def test_only_what_is_above_every_row_is_new() -> None:
    on_index = {"axolotl": "0.19.0", "ray": "2.99.0", "deepspeed": "0.1.0"}

    assert releases.unknown(FACTS, on_index) == ["ray==2.99.0"]


def test_a_package_without_wheels_is_asked_for_as_source() -> None:
    calls: list[list[str]] = []

    def uv_without_network(arguments: list[str]) -> CompletedProcess[str]:
        calls.append(list(arguments))
        error = "error: Failed to fetch: `https://index.test/simple/ray/`"
        return CompletedProcess([], 1, "", error)

    with pytest.raises(UserError, match=r"index\.test can't be reached"):
        releases.newest(FACTS, ["3.13"], ["mamba-ssm"], uv_without_network)  # type: ignore[arg-type]

    (arguments,) = calls
    from_source = set()
    for option, value in pairwise(arguments):
        if option == "--no-binary":
            from_source.add(value)
    assert {"mamba-ssm", "axolotl"} <= from_source
    assert "ray" not in from_source
    assert "--no-deps" in arguments


def test_a_release_for_the_newest_python_alone_is_found_and_one_that_stayed_behind_too() -> None:
    """axolotl 0.21 wants Python 3.12, auto-gptq has wheels up to 3.11."""
    asked: list[tuple[str, str]] = []

    def uv(arguments: list[str]) -> CompletedProcess[str]:
        # uv is given the packages as those of a project.
        (name,) = tomllib.loads(Path(arguments[2]).read_text())["project"]["dependencies"]
        python = arguments[arguments.index("--python-version") + 1]
        asked.append((name, python))
        if name == "auto-gptq" and python == "3.13":
            error = "error: No solution found when resolving dependencies: no wheels"
            return CompletedProcess([], 1, "", error)
        wheel = '{url = "https://index.test/a.whl", hashes = {sha256 = "0"}}'
        row = f'name = "{name}"\nversion = "99.{python}"\nwheels = [{wheel}]'
        Path(arguments[-1]).write_text(f"[[packages]]\n{row}\n")
        return CompletedProcess([], 0, "", "")

    versions = releases.newest(FACTS, ["3.13", "3.11"], [], uv)  # type: ignore[arg-type]

    assert (versions["ray"], versions["auto-gptq"]) == ("99.3.13", "99.3.11")
    assert [name for name, python in asked if python == "3.11"] == ["auto-gptq"]


def test_a_row_goes_behind_the_last_of_its_package_and_nothing_else_moves() -> None:
    names = ("axolotl", "vllm")
    rows = [releases.make_row(metadata(name, "99.0"), "wheel", "tests") for name in names]

    text = releases.insert(TEXT, rows)

    before, after = yaml.safe_load(TEXT), yaml.safe_load(text)
    new_row = {"python": ">=3.10", "requires": ["torch"], "source": "tests"}
    for name in names:
        assert list(after["packages"][name]) == [*before["packages"][name], "99.0"]
        assert after["packages"][name].pop("99.0") == new_row
    assert after == before
    remaining_lines = iter(text.splitlines())
    for line in TEXT.splitlines():
        assert line in remaining_lines, "no line is changed, lost or moved"


def test_the_row_of_a_companion_is_of_its_own_section_and_names_what_the_wheel_tells() -> None:
    needs_torch = metadata("bitsandbytes", "99.0") + "Requires-Dist: torch<3,>=2.3\n"

    text = releases.make_row(needs_torch, "wheel", "tests")

    assert yaml.safe_load(text)["bitsandbytes"]["99.0"]["torch"] == "<3,>=2.3"
    assert "libraries" in text
