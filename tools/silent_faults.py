"""Make results/silent-faults.md: which image has which silent fault, by facts and as measured.

`python -m tools.silent_faults WHERE VERDICT.json` adds what a run measured. WHERE says on what it
ran: `H100`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from images.config.paths import RESOURCES
from images.context.prose import to_markdown
from images.planning import silent
from images.planning.image import Image
from images.planning.plan import Planned
from images.planning.silent import SilentFault
from tools import run

_RESULTS = "results/silent-faults.json"
_CHECK = "silent-faults"
_MEASURED = ("PASS", "KNOWN", "FAIL")
"""Verdicts of claims that a run has measured."""


def measured() -> dict[str, dict[str, Any]]:
    """Return what runs measured: `IMAGE, WHERE` -> subject -> how far it was off, or in words."""
    path = RESOURCES / _RESULTS
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
    """Return the page: the faults of a plain image of each torch, by facts and as measured."""
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
    return f"| {' | '.join(map(to_markdown, cells))} |"


def main(
    where: Annotated[str, typer.Argument()], verdict: Annotated[Path, typer.Argument()]
) -> None:
    """Add the results of a verdict.json to those of other runs."""
    content = json.loads(verdict.read_text())
    results = {}
    for claim in content["claims"]:
        if claim["check"] == _CHECK and claim["verdict"] in _MEASURED:
            results[claim["subject"]] = _describe(claim["verdict"], claim["reason"])

    all_results = measured()
    key = f"{content['image']}, {where}"
    all_results[key] = {**all_results.get(key, {}), **results}
    text = json.dumps(dict(sorted(all_results.items())), indent=1) + "\n"
    (RESOURCES / _RESULTS).write_text(text)


def _describe(verdict: str, reason: str) -> str:
    """Return how far a result was off, by the reason of its verdict; bold if it is wrong.

    `off by 0.25 of ...` becomes `0.25`. Other reasons are cut to a phrase.
    """
    number = re.match(r"off by (\S+)", reason)
    text = number[1] if number else reason.partition(".")[0][:60]
    return text if verdict == "PASS" else f"**{text}**"


if __name__ == "__main__":
    run(main)
