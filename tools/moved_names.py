"""Which entries of validate/releases.yaml a release contradicts: `python -m tools.moved_names WHEEL...`.

Names and modules alone: arguments and attributes depend on how classes inherit. The wheels: `pip download --no-deps`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import typer
import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from tools import hints, run

_EXPORTED = re.compile(r"^__all__\s*=\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)


def contradicted(wheel: Path) -> Iterator[str]:
    """`NAME VERSION has|lacks WHAT, which is in RANGE by the table`, of each entry that is not so."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    package, modules = str(name).replace("-", "_"), _modules(wheel)
    # What a package exports lazily stands in the __all__ of its modules alone.
    lazily = " ".join(found for text in modules.values() for found in _EXPORTED.findall(text))
    for section, owners in yaml.safe_load(hints.RELEASES.read_text(encoding="utf-8")).get(package, {}).items():
        for owner in sorted(owners.keys() & modules.keys()) if section in ("names", "modules") else ():
            words = set(re.findall(r"\w+", modules[owner] + lazily * (owner == package)))
            for releases, entries in owners[owner].items():
                right = SpecifierSet(releases.partition(" then ")[0])
                for one in entries.split():
                    there = one in (modules if section == "modules" else words)
                    if there is not right.contains(version.base_version):
                        what = one if section == "modules" else f"{owner}.{one}"
                        told = f"{'has' if there else 'lacks'} {what}"
                        yield f"{package} {version} {told}, which is in {right} by the table"


def _modules(wheel: Path) -> dict[str, str]:
    """Dotted name -> text without comments."""
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.endswith(".py")]
        texts = {name: re.sub(r"#.*", "", archive.read(name).decode("utf-8", "replace")) for name in files}
    return {name[:-3].removesuffix("/__init__").replace("/", "."): text for name, text in texts.items()}


def main(wheels: list[Path]) -> None:
    """Say which entries of releases.yaml these wheels contradict. 1: some."""
    told = [line for wheel in wheels for line in contradicted(wheel)]
    typer.echo("\n".join([*told, f"{len(told)} contradictions in {len(wheels)} wheels"]))
    raise typer.Exit(bool(told))


if __name__ == "__main__":
    run(main)
