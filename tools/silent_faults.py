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
from images.planning.silent import SilentFault
from tools import run

_KEPT = "results/silent-faults.json"
_CHECK = "silent-faults"


def measured() -> dict[str, dict[str, Any]]:
    """`IMAGE, WHERE` -> subject -> what it was off by, or in words."""
    path = RESOURCES / _KEPT
    return dict(json.loads(path.read_text())) if path.is_file() else {}


_HEAD = """\
# Silent faults

Some versions of torch, cuDNN, bitsandbytes, Liger and flash-attn give wrong numbers without an
error. This page lists these faults, which torch has them, and what you can do instead. For
example, where the row `compile-scatter` says `has`, torch.compile makes a `scatter_reduce` of one
number wrong. Leave that function uncompiled there, or take a torch that has not got the fault.

`nox -s plan -- NAME` names the faults of an image. [How they are
judged](../docs/validation.md#gpu-runs-the-kernels) says when an image is FAIL for one, and when
it is only KNOWN.

`nox -s generate` makes this page from
[images/data/silent_faults.yaml](../images/data/silent_faults.yaml) and from recorded runs.

"""
_BY_FACTS = """\
## Which torch has which fault

`has`: the image for this torch has the fault. `-`: it has not. `n/a`: it lacks the package. Other
packages matter, too, so an image with another cuDNN or Liger may differ.

"""
_AS_MEASURED = """\
## What runs measured

A number is how far the result was off, as a part of the largest right value. **Bold** numbers are
wrong results. An empty cell was not measured.

"""


def table(planned: Sequence[Planned]) -> bytes:
    """Return the page: the faults of a plain image of each torch, by facts and as runs measured them."""
    images: dict[str, Image] = {}
    for row in planned:
        # The first of each torch: others are for other platforms, or have a compiler besides.
        if row.image and row.image.cudnn and not row.profile:
            images.setdefault(str(row.image_name.torch), row.image)
    runs = measured()

    by_facts = [
        _line("fault", "issue", "what is wrong", *images, "what to do"),
        "|---" * (4 + len(images)) + "|",
    ]
    as_measured = [_line("fault", *runs), "|---" * (1 + len(runs)) + "|"]
    for subject, fault in silent.faults().items():
        states = [_state(fault, image) for image in images.values()]
        by_facts.append(_line(f"`{subject}`", fault.issue, fault.what, *states, fault.remedy))
        results = [str(run.get(subject, "")) for run in runs.values()]
        if any(results):
            as_measured.append(_line(f"`{subject}`", *results))

    lines = [_BY_FACTS + "\n".join(by_facts), "", _AS_MEASURED + "\n".join(as_measured), ""]
    return (_HEAD + "\n".join(lines)).encode()


def _state(fault: SilentFault, image: Image) -> str:
    """Return whether an image has a fault, in a word."""
    if fault.package not in image.versions:
        return "n/a"
    return "has" if fault.is_in(image.versions) else "-"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main(
    where: Annotated[str, typer.Argument()], verdict: Annotated[Path, typer.Argument()]
) -> None:
    """Take in the claims of a verdict.json."""
    found = json.loads(verdict.read_text())
    claims = [
        one
        for one in found["claims"]
        if one["check"] == _CHECK and one["verdict"] in ("PASS", "KNOWN", "FAIL")
    ]
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
