"""The lock of our own environments: it has what pyproject.toml asks for, by hash, and nothing of one machine."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.checkout import ROOT
from tools.relock import LOCKS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_the_project_asks_for(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.!+]+)", text, re.MULTILINE))
    asked = [
        *PROJECT["dependencies"],
        *(one for extra in LOCKS[name] for one in PROJECT["optional-dependencies"][extra]),
    ]
    for requirement in map(Requirement, asked):
        version = locked.get(canonicalize_name(requirement.name), "")
        assert version and requirement.specifier.contains(version), f"{requirement}: `python -m tools.relock`"


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_held_by_a_hash_and_names_no_place(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    pinned = [block for block in re.split(r"\n(?=\S)", text) if "==" in block]
    assert pinned and all("--hash=sha256:" in block for block in pinned)
    assert not re.search(r"https?://|file:|--(extra-)?index|--find-links|/", text.partition("\n")[2])
