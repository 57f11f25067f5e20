"""Newer releases: which are not known, and their rows put where they belong."""

import pytest
import yaml

from images.errors import Problem, UserError
from images.locking.uv import Answer
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from tools import releases

FACTS = SOURCES.facts
TEXT = (ROOT / "images" / "data" / "facts.yaml").read_text()


def metadata(name: str, version: str) -> str:
    return f"Name: {name}\nVersion: {version}\nRequires-Python: >=3.10\nRequires-Dist: torch\n"


def test_only_what_is_above_every_row_is_new() -> None:
    assert releases.unknown(FACTS, {"axolotl": "0.19.0", "ray": "2.99.0", "deepspeed": "0.1.0"}) == ["ray==2.99.0"]


def test_a_package_without_wheels_is_asked_for_as_source() -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str]) -> Answer:
        asked.append(list(arguments))
        return Answer(1, "", "error: Failed to fetch: `https://index.test/simple/ray/`")

    with pytest.raises(UserError, match=r"index\.test can't be reached"):
        releases.newest(FACTS, "3.11", ["mamba-ssm"], run)  # type: ignore[arg-type]
    (arguments,) = asked
    sources = {arguments[at + 1] for at, word in enumerate(arguments) if word == "--no-binary"}
    assert {"mamba-ssm", "axolotl"} <= sources and "ray" not in sources and "--no-deps" in arguments


def test_a_row_goes_behind_the_last_of_its_package_and_nothing_else_moves() -> None:
    rows = [releases.printed(metadata(name, "99.0"), "wheel", "tests") for name in ("axolotl", "vllm")]
    after = releases.inserted(TEXT, rows)
    old, new = yaml.safe_load(TEXT), yaml.safe_load(after)
    for name in ("axolotl", "vllm"):
        assert list(new["packages"][name]) == [*old["packages"][name], "99.0"]
        assert new["packages"][name].pop("99.0") == {"python": ">=3.10", "requires": ["torch"], "source": "tests"}
    assert new == old
    kept = iter(after.splitlines())
    assert all(line in kept for line in TEXT.splitlines()), "no line is changed, lost or moved"


def test_a_package_without_rows_is_refused() -> None:
    row = releases.printed(metadata("nobody", "1"), "wheel", "tests")
    with pytest.raises(UserError, match="has no rows of nobody"):
        releases.inserted(TEXT, [row])


def test_a_release_whose_metadata_cannot_be_read_keeps_no_other_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(requirement: str, *_: object) -> str:
        if requirement == "mamba-ssm==2.3":
            raise UserError(Problem(where=requirement, cause="its build asks for torch", then="mend it"))
        name, _, version = requirement.partition("==")
        return releases.printed(metadata(name, version), "wheel", "tests")

    monkeypatch.setattr(releases, "row", row)
    rows = releases.readable(["mamba-ssm==2.3", "ray==2.60"], "3.11", "the index")
    assert len(rows) == 1 and "2.60" in rows[0]
    said = " ".join(capsys.readouterr().err.split())
    assert "mamba-ssm==2.3 gets no row, its metadata can't be read: its build asks for torch" in said
