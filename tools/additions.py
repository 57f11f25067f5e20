"""Measure what people add to an image: install each package alone, and see whether torch stays.

`python -m tools.additions NAME` measures. results/additions.json keeps what was measured, and
docs/extending.md shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from images.config import paths
from images.context.hosting import HostSettings, host_settings
from images.engine import ContainerSpec, Engine, private_engine
from images.errors import failed, wrong
from images.planning import user_overlay
from images.planning.user_overlay import packages
from tools import run

FILE = "results/additions.json"
_SCRIPT = Path(__file__).with_name("try_package.py")
_INSIDE, _HOST = "/try", "/run/host"
"""Where a container has the script, and the settings of this machine for pip."""
_MOST_MEMORY = 8 * 1024**3
_INSTALL_SECONDS = 1500
_OTHER_SECONDS = 1500
"""For what the script does besides installing."""

MOVED = "TORCH MOVED"
"""The verdict that must never be seen: after the installation, torch is another one."""
_REFUSALS = ("ResolutionImpossible", "conflicting dependencies", "No matching distribution found")
"""What pip prints if a package does not fit to what the image's constraints hold."""


class Step(TypedDict):
    """How a command of try_package.py ended."""

    code: int
    """Exit status."""
    said: str
    """The end of its output."""


class Trial(TypedDict):
    """What try_package.py prints."""

    seconds: float
    installed: Step
    """`pip install`."""
    at_work: Step
    """A program that uses torch, then imports the package. It prints a line about torch first."""
    bytes: int
    """By how much the user's folder of environments has grown."""
    before: dict[str, str] | None
    after: dict[str, str] | None
    """Package -> version; None: the user's Python could not tell."""


def measure(engine: Engine, image: str, name: str, host: HostSettings) -> dict[str, Any]:
    """Install one package in a container of an image, as its user, with a fresh volume.

    Returns a row of the results. Raises UserError if the script does not run to its end.
    """
    package = packages()[name]
    start = f'. {_HOST}/env; exec python3 -B {_INSIDE}/try_package.py "$@"'
    arguments = [package.requirement, package.module, str(_INSTALL_SECONDS)]
    spec = ContainerSpec(
        image,
        ["sh", "-c", start, "sh", *arguments],
        name=f"{image} and {name}",
        volumes=[_INSIDE, _HOST],
        copied_volumes=[user_overlay.CACHE],
        network=host.network(local=engine.facts.local) or "default",
        read_only=False,
        memory=min(_MOST_MEMORY, engine.facts.memory * 3 // 4),
    )
    settings = {path.removeprefix("host/"): content for path, content in host.files().items()}
    with engine.container(spec) as container:
        container.put({"try_package.py": _SCRIPT.read_bytes()}, _INSIDE)
        container.put(settings, _HOST)
        output = container.run(timeout=_INSTALL_SECONDS + _OTHER_SECONDS)

    try:
        trial: Trial = json.loads(output.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        end = (output.stderr or output.stdout).strip()[-300:]
        cause = f"the trial in the container ended with status {output.code}: {end}"
        then = "see whether the engine's disk is full (`docker system df`), then run it again"
        raise wrong(spec.name, cause, then) from None
    # The first folder of PATH is the user's, the second the environment's.
    bin_folder = engine.inspect(image).env["PATH"].split(":")[1]
    return row(name, package.requirement, trial, bin_folder=bin_folder)


def row(name: str, requirement: str, trial: Trial, *, bin_folder: str) -> dict[str, Any]:
    """Return the row of the results for one trial. Pure.

    `bin_folder`: that of the image's own environment, /opt/venv/bin.
    """
    before, after = trial["before"] or {}, trial["after"] or {}
    moved: dict[str, list[str]] = {}
    for package in sorted(before.keys() & after.keys()):
        if after[package] != before[package]:
            moved[package] = [before[package], after[package]]
    is_installed = trial["installed"]["code"] == 0
    return {
        "package": name,
        "requirement": requirement,
        "version": after.get(name, "") if is_installed else "",
        "verdict": verdict(trial, moved, bin_folder.removesuffix("/bin")),
        "reason": _reason(trial),
        "seconds": trial["seconds"],
        "megabytes": round(trial["bytes"] / 1e6, 1),
        "added": len(after.keys() - before.keys()),
        "moved": moved,
    }


def verdict(trial: Trial, moved: Mapping[str, Sequence[str]], environment: str) -> str:
    """Return `added`, `refused`, `added, not importable`, `failed`, or MOVED. Pure.

    `moved`: packages that have another version after the trial. `environment`: the image's own,
    /opt/venv, in which torch has to stay.
    """
    if "torch" in moved or not _torch_file(trial).startswith(f"{environment}/"):
        return MOVED
    if trial["installed"]["code"] != 0:
        output = trial["installed"]["said"]
        is_refused = any(refusal in output for refusal in _REFUSALS)
        return "refused" if is_refused else "failed"
    return "added" if trial["at_work"]["code"] == 0 else "added, not importable"


def _torch_file(trial: Trial) -> str:
    """Return the file that `import torch` loaded after the installation; empty if it failed.

    The program prints `torch VERSION CUDA FILE`.
    """
    for line in trial["at_work"]["said"].splitlines():
        words = line.split()
        if words[:1] == ["torch"] and len(words) > 3:
            return words[3]
    return ""


def _reason(trial: Trial) -> str:
    """Return the last line that says why a step failed; empty if none did."""
    for step in (trial["installed"], trial["at_work"]):
        if step["code"] == 0:
            continue
        lines = [line.strip() for line in step["said"].splitlines() if line.strip()]
        telling = []
        for line in lines:
            if "requires" in line or "depends on" in line or "Error" in line:
                telling.append(line)
        return (telling or lines or ["no word"])[-1][:300]
    return ""


def read(root: Path = paths.RESOURCES) -> dict[str, Any]:
    """Return the file of results; empty if there is none."""
    file = root / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def with_rows(image: str, date: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the new content of the file of results.

    Rows of an earlier run stay where there is no new one, as long as the package is still listed.
    """
    row_by_package = {}
    for known in (*read().get("rows", ()), *rows):
        row_by_package[known["package"]] = known
    listed = [row_by_package[name] for name in packages() if name in row_by_package]
    results = {"image": image, "date": date, "rows": listed}
    return (json.dumps(results, indent=1, sort_keys=True) + "\n").encode()


def table(results: Mapping[str, Any]) -> str:
    """Return the generated part of docs/extending.md: a table, then notes on some packages."""
    advice = {name: package.instead for name, package in packages().items()}
    where = f"in `{results['image']}` on {results['date']}"
    how = "`pip install PACKAGE` as UID 1001, each package in a container of its own."
    lines = [
        f"Measured {where}: {how}",
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
    """Install what people add in containers of a built image, one each; torch must stay."""
    chosen = [package for package in packages() if not only or package in only]
    if not chosen:
        then = "give --only a package of images/data/additions.yaml, or add yours there"
        raise wrong(" ".join(only or ()), "no package of this name is measured", then)

    date = datetime.now(UTC).date().isoformat()
    moved_torch = []
    with private_engine.open_engine(engine, on_progress=typer.echo) as docker_engine:
        for package in chosen:
            measured = measure(docker_engine, name, package, host_settings())
            verdict_and_time = f"{measured['verdict']} in {measured['seconds']} s"
            typer.echo(f"{package}: {verdict_and_time} {measured['reason']}")
            # Written after each package, so that an interrupted run loses only one.
            (paths.RESOURCES / FILE).write_bytes(with_rows(name, date, [measured]))
            if measured["verdict"] == MOVED:
                moved_torch.append(package)
    if moved_torch:
        then = "see what the constraints in the image lack: /opt/truetag/constraints.txt"
        cause = "installing these packages replaced the image's torch"
        raise failed(", ".join(moved_torch), cause, then)


if __name__ == "__main__":
    run(main)
