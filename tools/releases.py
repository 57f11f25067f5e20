"""Find newer releases of the packages that facts.yaml has rows of, and write their rows.

`python -m tools.releases [--write]`, or with NAME==VERSION the row of one release. A row has what a
release says of itself. What was measured in wheels (GPU architectures, ABIs, libraries) is not part
of it: for that, somebody has to open the wheel.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.config import matrix, paths
from images.config.facts import BitsandbytesFacts, Facts, Row, TorchaoFacts, XformersFacts
from images.errors import UserError, failed, wrong
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
"""uv's name of Debian bookworm's platform."""
_INSTALL = "pip install --quiet --no-config --no-deps --no-progress --color never".split()


def newest(
    facts: Facts, pythons: Sequence[str], compiled: Collection[str], runner: Runner = uv.run
) -> dict[str, str]:
    """Return the newest release on the index of each package with rows: name -> version.

    `pythons`: a release counts if it is for one of these. They are asked one after another, for the
    packages that have no release for those before. `compiled`: distributions that the matrix has
    sources of; an index has no wheel of them. Packages without any release are left out.

    Raises UserError as `uv.resolve_packages` does.
    """
    from_source = set(compiled)
    for name, rows in facts.packages.items():
        if any(row.form == "source" for row in rows.values()):
            from_source.add(name)

    versions: dict[str, str] = {}
    for python in pythons:
        target = Target(python=python, platform=_PLATFORM, from_source=tuple(sorted(from_source)))
        for name in sorted(facts.packages.keys() - versions):
            with suppress(uv.NoSolution):
                packages = uv.resolve_packages(
                    [name], target, chosen={}, run=runner, where=FACTS, dependencies=False
                )
                for package in packages:
                    versions[package.name] = package.version
    return versions


def unknown(facts: Facts, versions: Mapping[str, str]) -> list[str]:
    """Return releases that are newer than every row of their package, as NAME==VERSION."""
    newer = []
    for name, version in sorted(versions.items()):
        if all(Version(version) > Version(known) for known in facts.packages[name]):
            newer.append(f"{name}=={version}")
    return newer


def read_row(requirement: str, python: str, source: str, runner: Runner = uv.run) -> str:
    """Return what one release says of itself, as a row of facts.yaml for the section `packages`.

    The release (NAME==VERSION) is installed into a scratch folder, and its METADATA read. A release
    without a wheel is built, which runs its code on this machine. `source`: where the row says that
    it comes from.

    Raises UserError if it is not NAME==VERSION, not on the index, or can't be built.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.!]+", requirement):
        then = "write one exact version: axolotl==0.19.0, for example"
        raise wrong(requirement, "this is not NAME==VERSION", then)

    with tempfile.TemporaryDirectory() as scratch:
        install = [*_INSTALL, "--python-version", python, "--target", scratch]
        form = "wheel"
        answer = runner([*install, "--only-binary", ":all:", requirement])
        if answer.returncode and "no usable wheels" in answer.stderr:
            form = "source"
            answer = runner([*install, requirement])
        if answer.returncode:
            cause = " ".join(answer.stderr.split()) or "uv failed"
            then = "correct the name or the version, or set UV_DEFAULT_INDEX to an index with it"
            raise failed(requirement, cause, then)
        (file,) = Path(scratch).glob("*.dist-info/METADATA")
        return make_row(file.read_text(encoding="utf-8"), form, source)


def make_row(metadata: str, form: str, source: str) -> str:
    """Return the row of a release as YAML text, from its METADATA.

    `form`: `wheel` or `source`. Requirements of extras are left out: they apply only where the
    extra is asked for.
    """
    headers = HeaderParser().parsestr(metadata)
    name = canonicalize_name(str(headers["Name"]))
    requirements = [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
    python = str(headers["Requires-Python"] or "")

    if name in COMPANIONS:
        return _make_companion_row(name, headers, requirements, python, source)
    fields = {
        "form": "" if form == "wheel" else form,
        "python": python,
        "requires": sorted(
            str(one) for one in requirements if "extra" not in str(one.marker or "")
        ),
        "source": source,
    }
    return _as_yaml(name, headers, fields, indent="  ")


def _make_companion_row(
    name: str, headers: Message, requirements: Sequence[Requirement], python: str, source: str
) -> str:
    """Return the row of a package with a section of its own, and a comment on what it lacks."""
    torch = ""
    for requirement in requirements:
        if requirement.name == "torch" and requirement.specifier:
            torch = str(requirement.specifier)
            break

    fields = {"torch": torch, "python": python, "source": source}
    lacking = []
    for key, field in COMPANIONS[name].model_fields.items():
        if field.is_required() and not fields.get(key):
            lacking.append(key)
    row = _as_yaml(name, headers, fields, indent="")
    return f"{row}    # read in the wheel, and add: {', '.join(lacking)}\n"


def _as_yaml(name: str, headers: Message, fields: Mapping[str, Any], *, indent: str) -> str:
    """Return the row of a release, without empty fields; `indent` comes before each line."""
    row = {key: value for key, value in fields.items() if value}
    text = yaml.safe_dump(
        {name: {str(headers["Version"]): row}},
        sort_keys=False,
        width=130,
        allow_unicode=True,
        default_flow_style=None,
    )
    return "".join(f"{indent}{line}\n" for line in text.splitlines())


def insert(text: str, rows: Sequence[str]) -> str:
    """Return facts.yaml (`text`) with these rows behind the last one of their packages.

    All other lines stay as they are. Raises UserError for a package that has no rows there yet.
    """
    lines = text.splitlines(keepends=True)
    section = lines.index("packages:\n")
    for row in rows:
        # The first line of a row names the package, as in facts.yaml: `  axolotl:`.
        head, *content = row.splitlines(keepends=True)
        if head not in lines[section:]:
            name = head.strip(" :\n")
            cause = f"`packages` has no rows of {name} yet"
            raise wrong(FACTS, cause, f"write `{name}:` there, then give the command again")
        end = lines.index(head, section) + 1
        # The package's rows end where a line is indented as its name is, or less.
        while end < len(lines) and not re.match(r" {0,2}[^ \n]", lines[end]):
            end += 1
        lines[end:end] = content
    return "".join(lines)


def read_rows(requirements: Sequence[str], python: str, source: str) -> list[str]:
    """Return the rows of releases. One whose metadata can't be read is reported and left out."""
    rows = []
    for requirement in requirements:
        try:
            rows.append(read_row(requirement, python, source))
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
    """Print releases that the index has and facts.yaml has no row of."""
    sources = matrix.load()
    # The newest first, as some releases are only for it: axolotl 0.21 is not there for Python 3.11.
    bases = {base.python for base in sources.matrix.bases.values()}
    pythons = [python] if python else sorted(bases, key=Version, reverse=True)
    day = datetime.now(UTC).date()
    source = f"Requires-Dist of its METADATA, read {day} (`python -m tools.releases`)"
    if requirement:
        typer.echo(read_row(requirement, pythons[0], source), nl=False)
        return

    compiled = {row.distribution or name for name, row in sources.matrix.sources.items()}
    newer = unknown(sources.facts, newest(sources.facts, pythons, compiled))
    typer.echo("\n".join(newer))
    if newer and write:
        file = paths.RESOURCES / FACTS
        rows = read_rows(newer, pythons[0], source)
        file.write_text(insert(file.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    run(main)
