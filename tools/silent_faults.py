"""The table of silent faults x images, by facts and as runs measured it: results/silent-faults.md.

`python -m tools.silent_faults WHERE VERDICT.json` takes in what a run measured; WHERE says on what: `H100`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from images.config.paths import RESOURCES
from images.planning import silent
from images.planning.image import Image
from images.planning.plan import Planned
from tools import run

_KEPT = "results/silent-faults.json"
_CHECK = "silent-faults"


def measured() -> dict[str, dict[str, Any]]:
    """`IMAGE, WHERE` -> subject -> what it was off by, or in words."""
    path = RESOURCES / _KEPT
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def table(planned: Sequence[Planned]) -> bytes:
    """Rows: faults. Columns: a plain image of each torch by facts, then the runs."""
    images: dict[str, Image] = {}
    for one in planned:  # the first of each torch: others are of other platforms, or have a compiler besides
        if one.image and one.image.cudnn and not one.profile:
            images.setdefault(str(one.image_name.torch), one.image)
    runs = measured()
    lines = [
        "# Silent faults",
        "",
        "[images/data/silent_faults.yaml](../images/data/silent_faults.yaml) x torch. `has`: these versions have",
        "it; `-`: they have not; `n/a`: it lacks the package. Of runs: how far off it was, as a part of the largest",
        "value; **bold**: wrong. Made by `nox -s generate`; `python -m tools.silent_faults` takes in a run.",
        "",
        f"| fault | issue | what | {' | '.join([*images, *runs])} |",
        "|---" * (3 + len(images) + len(runs)) + "|",
    ]
    for subject, row in silent.faults().items():
        known = [
            "n/a" if row.package not in one.versions else "has" if row.of(one.versions) else "-"
            for one in images.values()
        ]
        cells = [f"`{subject}`", row.issue, row.what, *known, *(str(one.get(subject, "")) for one in runs.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return ("\n".join(lines) + "\n").encode()


def main(where: Annotated[str, typer.Argument()], verdict: Annotated[Path, typer.Argument()]) -> None:
    """Take in the claims of a verdict.json."""
    found = json.loads(verdict.read_text())
    claims = [one for one in found["claims"] if one["check"] == _CHECK and one["verdict"] in ("PASS", "KNOWN", "FAIL")]
    told = {one["subject"]: _said(one["verdict"], one["reason"]) for one in claims}
    key = f"{found['image']}, {where}"
    kept = measured()
    kept[key] = {**kept.get(key, {}), **told}
    (RESOURCES / _KEPT).write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def _said(verdict: str, reason: str) -> str:
    off = re.match(r"off by (\S+)", reason)
    text = off[1] if off else reason.partition(".")[0][:60]
    return text if verdict == "PASS" else f"**{text}**"


if __name__ == "__main__":
    run(main)
