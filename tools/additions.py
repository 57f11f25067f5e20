"""What people add to an image: each package installed in a container of its own, and whether torch stayed as it was.

`python -m tools.additions NAME` measures; results/additions.json keeps it; docs/extending.md shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from images.config import paths
from images.context.hosting import HostSettings, host_settings
from images.engine import ContainerSpec, Engine, private_engine
from images.errors import Problem, UserError
from images.planning import user_overlay
from images.planning.user_overlay import packages
from tools import run

FILE = "results/additions.json"
_SCRIPT = Path(__file__).with_name("try_package.py")
_INSIDE, _HOST = "/try", "/run/host"
_GIB = 1024**3
_SECONDS = 1500
MOVED = "TORCH MOVED"
"""The verdict that must never be seen."""
_REFUSED = ("ResolutionImpossible", "conflicting dependencies", "No matching distribution found")


def measure(engine: Engine, image: str, name: str, host: HostSettings) -> dict[str, Any]:
    """Install one package in a container of an image, as its user, with a fresh volume. Raises UserError."""
    package = packages()[name]
    start = f'. {_HOST}/env; exec python3 -B {_INSIDE}/try_package.py "$@"'
    spec = ContainerSpec(
        image,
        ["sh", "-c", start, "sh", package.requirement, package.module, str(_SECONDS)],
        name=f"{image} and {name}",
        volumes=[_INSIDE, _HOST],
        copied_volumes=[user_overlay.CACHE],
        network=host.network(local=engine.facts.local) or "default",
        read_only=False,
        memory=min(8 * _GIB, engine.facts.memory * 3 // 4),
    )
    with engine.container(spec) as container:
        container.put({"try_package.py": _SCRIPT.read_bytes()}, _INSIDE)
        container.put(
            {name.removeprefix("host/"): content for name, content in host.files().items()}, _HOST
        )
        done = container.run(timeout=_SECONDS + 1500)
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        cause = f"ended with status {done.code}: {(done.stderr or done.stdout).strip()[-300:]}"
        raise UserError(
            Problem(where=spec.name, cause=cause, then="run it again; is there space left?")
        ) from None
    return row(
        name, package.requirement, found, bin_folder=engine.inspect(image).env["PATH"].split(":")[1]
    )


def row(
    name: str, requirement: str, found: Mapping[str, Any], *, bin_folder: str
) -> dict[str, Any]:
    """What is kept of one measurement. Pure."""
    before, after = found["before"] or {}, found["after"] or {}
    moved = {
        one: [before[one], after[one]]
        for one in before
        if one in after and after[one] != before[one]
    }
    return {
        "package": name,
        "requirement": requirement,
        "version": after.get(name, "") if found["installed"]["code"] == 0 else "",
        "verdict": verdict(found, moved, bin_folder.removesuffix("/bin")),
        "reason": _reason(found),
        "seconds": found["seconds"],
        "megabytes": round(found["bytes"] / 1e6, 1),
        "added": len(after.keys() - before.keys()),
        "moved": dict(sorted(moved.items())),
    }


def verdict(found: Mapping[str, Any], moved: Mapping[str, Sequence[str]], prefix: str) -> str:
    """`added`, `refused`, `added, not importable`, `failed`; or MOVED. Pure."""
    said = [line.split() for line in str(found["at_work"]["said"]).splitlines()]
    torch = next((words[3] for words in said if words[:1] == ["torch"] and len(words) > 3), "")
    if not torch.startswith(f"{prefix}/") or "torch" in moved:
        return MOVED
    if found["installed"]["code"] != 0:
        return (
            "refused" if any(word in found["installed"]["said"] for word in _REFUSED) else "failed"
        )
    return "added" if found["at_work"]["code"] == 0 else "added, not importable"


def _reason(found: Mapping[str, Any]) -> str:
    """The line that says why, of what did not go well."""
    for step in ("installed", "at_work"):
        if found[step]["code"] != 0:
            lines = [line.strip() for line in str(found[step]["said"]).splitlines() if line.strip()]
            telling = [
                line
                for line in lines
                if "requires" in line or "depends on" in line or "Error" in line
            ]
            return str((telling or lines or ["no word"])[-1])[:300]
    return ""


def read(root: Path = paths.RESOURCES) -> dict[str, Any]:
    """What was measured last; nothing where there is no file."""
    file = root / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def written(image: str, date: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The file of results: rows of an earlier run that were not measured again stay."""
    known = {one["package"]: one for one in read().get("rows", ())}
    known.update({one["package"]: one for one in rows})
    kept = [known[name] for name in packages() if name in known]
    return (
        json.dumps({"image": image, "date": date, "rows": kept}, indent=1, sort_keys=True) + "\n"
    ).encode()


def table(results: Mapping[str, Any]) -> str:
    """Return the generated part of docs/extending.md: a table, then a note on each package that needs one."""
    advice = {name: package.instead for name, package in packages().items()}
    where = f"in `{results['image']}` on {results['date']}"
    lines = [
        f"Measured {where}: `pip install PACKAGE` as UID 1001, each package in a container of its own.",
        "",
        "| package | verdict | version | seconds | MB | packages added | packages moved |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for measured in results["rows"]:
        lines.append(_table_row(measured))
        notes += _notes(measured, advice[measured["package"]])
    return "\n".join([*lines, "", "Notes on these packages:", "", *notes]) + "\n"


def _table_row(measured: Mapping[str, Any]) -> str:
    cells = [
        f"`{measured['requirement']}`",
        measured["verdict"],
        measured["version"] or "-",
        f"{measured['seconds']:.0f}",
        f"{measured['megabytes']:.0f}",
        str(measured["added"]),
        str(len(measured["moved"])),
    ]
    return f"| {' | '.join(cells)} |"


def _notes(measured: Mapping[str, Any], advice: str) -> Iterator[str]:
    """Yield why a package was not added, or which packages of the image it moved."""
    name = f"`{measured['requirement']}`"
    if measured["verdict"] != "added":
        yield f"- {name} ({measured['verdict']}): {advice or measured['reason']}."
    moved = [
        f"{package} {before} to {after}" for package, (before, after) in measured["moved"].items()
    ]
    if moved:
        yield f"- {name} moved {', '.join(moved)}."


def main(
    name: str,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PACKAGE", help="Of additions.yaml (repeat it).")
    ] = None,
    engine: Annotated[str | None, typer.Option(metavar="URL", help="The Docker Engine.")] = None,
) -> None:
    """Install what people add in containers of a built image, one each, and see that torch stays as it was."""
    chosen = [package for package in packages() if not only or package in only]
    if not chosen:
        then = "images/data/additions.yaml lists them"
        raise UserError(
            Problem(where=" ".join(only or ()), cause="is no package that is measured", then=then)
        )
    date, moved = datetime.now(UTC).date().isoformat(), []
    with private_engine.open_engine(engine, on_progress=typer.echo) as docker_engine:
        for package in chosen:
            found = measure(docker_engine, name, package, host_settings())
            typer.echo(f"{package}: {found['verdict']} in {found['seconds']} s {found['reason']}")
            (paths.RESOURCES / FILE).write_bytes(written(name, date, [found]))
            moved += [package] if found["verdict"] == MOVED else []
    if moved:
        then = "see what the constraints in the image lack: /opt/truetag/constraints.txt"
        raise UserError(Problem(where=", ".join(moved), cause="moved torch", then=then), code=1)


if __name__ == "__main__":
    run(main)
