"""Newer releases: which are not known, and their rows put where they belong."""

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
    return f"Name: {name}\nVersion: {version}\nRequires-Python: >=3.10\nRequires-Dist: torch\n"


def test_only_what_is_above_every_row_is_new() -> None:
    assert releases.unknown(
        FACTS, {"axolotl": "0.19.0", "ray": "2.99.0", "deepspeed": "0.1.0"}
    ) == ["ray==2.99.0"]


def test_a_package_without_wheels_is_asked_for_as_source() -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str]) -> CompletedProcess[str]:
        asked.append(list(arguments))
        return CompletedProcess(
            [], 1, "", "error: Failed to fetch: `https://index.test/simple/ray/`"
        )

    with pytest.raises(UserError, match=r"index\.test can't be reached"):
        releases.newest(FACTS, ["3.13"], ["mamba-ssm"], run)  # type: ignore[arg-type]
    (arguments,) = asked
    sources = {arguments[at + 1] for at, word in enumerate(arguments) if word == "--no-binary"}
    assert {"mamba-ssm", "axolotl"} <= sources and "ray" not in sources and "--no-deps" in arguments


def test_a_release_for_the_newest_python_alone_is_found_and_one_that_stayed_behind_too() -> None:
    """axolotl 0.21 wants Python 3.12, auto-gptq has wheels up to 3.11."""
    asked: list[tuple[str, str]] = []

    def run(arguments: list[str]) -> CompletedProcess[str]:
        name, python = (
            Path(arguments[2]).read_text().strip(),
            arguments[arguments.index("--python-version") + 1],
        )
        asked.append((name, python))
        if name == "auto-gptq" and python == "3.13":
            return CompletedProcess(
                [], 1, "", "error: No solution found when resolving dependencies: no wheels"
            )
        wheel = '{url = "https://index.test/a.whl", hashes = {sha256 = "0"}}'
        row = f'name = "{name}"\nversion = "99.{python}"\nwheels = [{wheel}]'
        Path(arguments[-1]).write_text(f"[[packages]]\n{row}\n")
        return CompletedProcess([], 0, "", "")

    found = releases.newest(FACTS, ["3.13", "3.11"], [], run)  # type: ignore[arg-type]
    assert (found["ray"], found["auto-gptq"]) == ("99.3.13", "99.3.11")
    assert [name for name, python in asked if python == "3.11"] == ["auto-gptq"]


def test_a_row_goes_behind_the_last_of_its_package_and_nothing_else_moves() -> None:
    rows = [
        releases.make_row(metadata(name, "99.0"), "wheel", "tests") for name in ("axolotl", "vllm")
    ]
    after = releases.insert(TEXT, rows)
    old, new = yaml.safe_load(TEXT), yaml.safe_load(after)
    for name in ("axolotl", "vllm"):
        assert list(new["packages"][name]) == [*old["packages"][name], "99.0"]
        assert new["packages"][name].pop("99.0") == {
            "python": ">=3.10",
            "requires": ["torch"],
            "source": "tests",
        }
    assert new == old
    kept = iter(after.splitlines())
    assert all(line in kept for line in TEXT.splitlines()), "no line is changed, lost or moved"


def test_the_row_of_a_companion_is_of_its_own_section_and_names_what_the_wheel_tells() -> None:
    text = releases.make_row(
        metadata("bitsandbytes", "99.0") + "Requires-Dist: torch<3,>=2.3\n", "wheel", "tests"
    )
    assert (
        yaml.safe_load(text)["bitsandbytes"]["99.0"]["torch"] == "<3,>=2.3" and "libraries" in text
    )
