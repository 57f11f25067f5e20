"""Newer releases of the packages that facts.yaml has rows of: what of the facts a machine may renew.

`python -m tools.releases [--write]`, or with NAME==VERSION the row of one release. What was measured in wheels (GPU
archs, ABIs, libraries) is not among it: for that, somebody opens the wheel.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import Annotated

import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.config import matrix, paths
from images.config.facts import BitsandbytesFacts, Facts, Row, TorchaoFacts, XformersFacts
from images.errors import Problem, UserError
from images.locking import uv
from images.locking.inputs import Target
from images.locking.uv import Runner
from tools import run

FACTS = "images/data/facts.yaml"
COMPANIONS: Mapping[str, type[Row]] = {
    "xformers": XformersFacts,
    "bitsandbytes": BitsandbytesFacts,
    "torchao": TorchaoFacts,
}
"""Packages whose rows stand in a section of their own, and not under `packages`."""
_PLATFORM = "x86_64-manylinux_2_36"
"""Debian bookworm's, by uv's name of it."""


def newest(
    facts: Facts, pythons: Sequence[str], compiled: Collection[str], runner: Runner = uv.run
) -> dict[str, str]:
    """Name -> newest release on the index, of each package with rows. Raises UserError as `uv.resolve_packages` does.

    `pythons`: a release counts if it is for one of them; what none of the first has is asked of the next.
    `compiled` are distributions that the matrix has sources of: an index has no wheel of them.
    """
    sources = {
        name
        for name, rows in facts.packages.items()
        if any(row.form == "source" for row in rows.values())
    }
    found: dict[str, str] = {}
    for python in pythons:
        asked = Target(
            python=python, platform=_PLATFORM, from_source=tuple(sorted(sources.union(compiled)))
        )
        for name in sorted(facts.packages.keys() - found):
            with suppress(uv.NoSolution):
                packages = uv.resolve_packages(
                    [name], asked, chosen={}, run=runner, where=FACTS, dependencies=False
                )
                found.update((package.name, package.version) for package in packages)
    return found


def unknown(facts: Facts, found: Mapping[str, str]) -> list[str]:
    """Releases above every row of their package, as NAME==VERSION."""
    return [
        f"{name}=={version}"
        for name, version in sorted(found.items())
        if all(Version(version) > Version(known) for known in facts.packages[name])
    ]


def row(requirement: str, python: str, source: str, runner: Runner = uv.run) -> str:
    """What one release says of itself, as a row of facts.yaml, to be put under `packages`.

    It is installed alone into a scratch folder, and its METADATA read. A release without a wheel is built, which runs
    its code on this machine. Raises UserError: not `NAME==VERSION`, not on the index, can't be built.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.!]+", requirement):
        raise UserError(
            Problem(where=requirement, cause="is not NAME==VERSION", then="name one exact version")
        )
    with tempfile.TemporaryDirectory() as scratch:
        install = [
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--no-deps",
            "--no-progress",
            "--color",
            "never",
        ]
        install += ["--python-version", python, "--target", scratch]
        form = "wheel"
        answer = runner([*install, "--only-binary", ":all:", requirement])
        if answer.returncode and "no usable wheels" in answer.stderr:
            form = "source"
            answer = runner([*install, requirement])
        if answer.returncode:
            cause = " ".join(answer.stderr.split()) or "uv failed"
            raise UserError(
                Problem(where=requirement, cause=cause, then="fix the name or the version"), code=1
            )
        (file,) = Path(scratch).glob("*.dist-info/METADATA")
        return printed(file.read_text(encoding="utf-8"), form, source)


def printed(metadata: str, form: str, source: str) -> str:
    """The row of a METADATA file. Requirements of an extra are left out: they apply where the extra is asked for."""
    headers = HeaderParser().parsestr(metadata)
    stated = [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
    fields = {
        "form": "" if form == "wheel" else form,
        "python": str(headers["Requires-Python"] or ""),
        "requires": sorted(str(one) for one in stated if "extra" not in str(one.marker or "")),
        "source": source,
    }
    name, indent, missing = canonicalize_name(str(headers["Name"])), "  ", ""
    if name in COMPANIONS:  # a section of its own, with what only the wheel tells
        torch = next(
            (str(one.specifier) for one in stated if one.name == "torch" and one.specifier), ""
        )
        fields, indent = {"torch": torch, "python": fields["python"], "source": source}, ""
        lacking = [
            key
            for key, one in COMPANIONS[name].model_fields.items()
            if one.is_required() and not fields.get(key)
        ]
        missing = f"    # read in the wheel, and add: {', '.join(lacking)}\n"
    named = {
        name: {str(headers["Version"]): {key: value for key, value in fields.items() if value}}
    }
    text = yaml.safe_dump(
        named, sort_keys=False, width=130, allow_unicode=True, default_flow_style=None
    )
    return "".join(f"{indent}{line}\n" for line in text.splitlines()) + missing


def inserted(text: str, rows: Sequence[str]) -> str:
    """facts.yaml with rows under their packages, each behind the last one there, and all else untouched.

    Raises UserError for a package that has no rows there yet.
    """
    lines = text.splitlines(keepends=True)
    for new in rows:
        head, *content = new.splitlines(keepends=True)
        if head not in lines[(section := lines.index("packages:\n")) :]:
            name = head.strip(" :\n")
            then = "write the first one by hand"
            raise UserError(Problem(where=FACTS, cause=f"has no rows of {name}", then=then))
        start = lines.index(head, section) + 1
        following = (at for at in range(start, len(lines)) if re.match(r" {0,2}[^ \n]", lines[at]))
        end = next(following, len(lines))
        lines[end:end] = content
    return "".join(lines)


def readable(newer: Sequence[str], python: str, source: str) -> list[str]:
    """The rows of releases; one whose metadata can't be read is named and left out."""
    rows = []
    for requirement in newer:
        try:
            rows.append(row(requirement, python, source))
        except UserError as error:
            cause = error.problems[0].cause.splitlines()[0][:160]
            typer.echo(f"{requirement} gets no row, its metadata can't be read: {cause}", err=True)
    return rows


def main(
    requirement: Annotated[
        str, typer.Argument(metavar="[NAME==VERSION]", help="Print the row of one release.")
    ] = "",
    write: Annotated[bool, typer.Option("--write", help=f"Add their rows to {FACTS}.")] = False,
    python: Annotated[
        str, typer.Option("--python", help="The Python to look for; default: those of all bases.")
    ] = "",
) -> None:
    """Releases that the index has and facts.yaml has no row of."""
    sources = matrix.load()
    # The newest first, as some releases are for it alone: axolotl 0.21 is not there for Python 3.11.
    bases = sorted(
        {base.python for base in sources.matrix.bases.values()}, key=Version, reverse=True
    )
    pythons = [python] if python else bases
    source = f"Requires-Dist of its METADATA, read {datetime.now(UTC).date()} (`python -m tools.releases`)"
    if requirement:
        typer.echo(row(requirement, pythons[0], source), nl=False)
        return
    compiled = {one.distribution or name for name, one in sources.matrix.sources.items()}
    newer = unknown(sources.facts, newest(sources.facts, pythons, compiled))
    typer.echo("\n".join(newer))
    if newer and write:
        file = paths.RESOURCES / FACTS
        rows = readable(newer, pythons[0], source)
        file.write_text(inserted(file.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    run(main)
