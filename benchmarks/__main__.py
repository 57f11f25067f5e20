"""`python -m benchmarks [--only PART]`: measures, and keeps what was measured after each part."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import cold, delivery, plan, rebuild, results, validation
from benchmarks.session import Session, open_session
from images.errors import Problem, UserError

PARTS: Mapping[str, Callable[[Session], dict[str, Any]]] = {
    "plan": plan.measure,
    "cold": cold.measure,
    "rebuild": rebuild.measure,
    "trial": validation.measure,
    "delivery": delivery.measure,
}
"""What `--only` names, in the order in which they run."""


def benchmark(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help=f"One of {', '.join(PARTS)} (repeat it).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where results go, part by part.")] = results.FILE,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times that each timing is taken.")] = 3,
    rest: Annotated[int, typer.Option("--rest", min=0, help="Seconds to wait before each cold build.")] = 0,
    engine: Annotated[str | None, typer.Option("--engine", metavar="URL", help="The Docker Engine.")] = None,
) -> None:
    """Measure builds and delivery, ours beside the conventional way. All parts take hours; each can be repeated.

    On ext4 without a journal give --rest 361: it passes over each inode that was deleted in the last minutes.
    """
    names = only or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        then = f"name some of {', '.join(PARTS)}"
        raise UserError(Problem(where=" ".join(unknown), cause="is nothing that is measured", then=then))
    with open_session(engine, repeat=repeat, rest=rest) as session:
        for name in names:
            began, start = results.now(), time.monotonic()
            machine, commit = results.machine(session.engine), results.revision()
            session.say(f"{name} (load {results.load_now():.1f} on {machine['cores']} cores)")
            data = PARTS[name](session)
            entry = {"date": began, "commit": commit, "machine": machine, "took": round(time.monotonic() - start)}
            results.keep(out, name, {**entry, "data": data})
    typer.echo(f"{out}; `nox -s generate` renews docs/benchmarks.md")


def main() -> None:
    """Ends the process, as the product does: 2 for wrong input, 1 for what failed."""
    try:
        typer.run(benchmark)
    except UserError as error:
        typer.echo(f"error {error}", err=True)
        sys.exit(error.code)


if __name__ == "__main__":
    main()
