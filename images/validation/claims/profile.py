"""The claims of profiles: P1 to P3, from the rows of images/data/profile_claims.yaml. Pure.

Each of examples/ is run in the image as users run it, and held against plain torch. A row says how to run it and what
its result may deviate. Everything else is the same for all: every step was taken, the loss falls, what is trained moves
and the rest stays, what was saved lacks nothing, and it loads again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from images.config import yamlfile
from images.validation.claims.context import ClaimContext, below, claim
from validate.claims import Claim

Row = Mapping[str, Any]
_TABLES: Mapping[str, Mapping[str, Row]] = yamlfile.table("profile_claims.yaml")
BEHAVIOURS, EXAMPLES, FAMILIES, _BOUNDS = (_TABLES[name] for name in ("behaviours", "examples", "families", "bounds"))
_WEIGHTS, _ADAPTERS = 21, 28
"""Tensors that examples train: weights, or halves of adapters."""
_APART = 5.0
"""An example's controls are to be this many times further off than the bound that they try."""


def profile_claims(context: ClaimContext) -> Iterator[Claim]:
    """P1 (cpu), P2 (gpu) and P3 (multigpu) of an image's profile; none of an image without one."""
    image = context.image
    by_tier = {"cpu": ("P1", ""), "gpu": ("P2", context.no_gpu), "multigpu": ("P3", context.no_ranks)}
    for subject, row in (*BEHAVIOURS.items(), *example_rows()):
        if image.name.profile not in row["profiles"] or not all(image.pin(name) for name in row.get("needs", ())):
            continue
        lacking = ""
        if package := row.get("extensions"):
            pin, without_nvcc = image.pin(package), row.get("without_nvcc", "")
            has_extensions = bool(pin and pin.extensions)
            if not (has_extensions or without_nvcc):  # neither compiled ahead of time, nor on first use
                continue
            lacking = context.without_extensions(pin) if pin else ""
            if without_nvcc:
                lacking = "" if image.name.devel or (has_extensions and not lacking) else without_nvcc
        number, no_gpu = by_tier[row["probe"].partition(".")[0]]
        unproven, expect = lacking or no_gpu, row["expect"]
        if context.inventory and (gate := below(context.inventory.gpus, tuple(row.get("capability", ())))):
            expect = {**expect, "not_applicable": gate}
        if context.on_gpu and number == "P1" and "gpu" in row.get("tiers", ()):
            expect = {**expect, "not_applicable": "not run: P2 runs the same example on the GPU that is here"}
        required = row.get("required", True) and not lacking and "not_applicable" not in expect
        yield claim(number, subject, row["probe"], row["statement"], expect, required=required, unproven=unproven)


def example_rows() -> Iterator[tuple[str, Row]]:
    """Subject and row of every example, as of BEHAVIOURS, once for each of its tiers."""
    for subject, row in EXAMPLES.items():
        family = FAMILIES[row["family"]]
        for tier, bounds in row["tiers"].items():
            probe = row.get("probe", f"{tier}.examples")
            found = {"profiles": family["profiles"], "probe": probe, "expect": _expect(row, _BOUNDS[bounds])}
            yield subject, {**row, **found}


def commands(row: Row) -> list[str]:
    """Of an example, after the one that makes the tiny model."""
    return [one.format(f"{row['config']}.yaml") for one in row.get("commands") or FAMILIES[row["family"]]["commands"]]


def _expect(row: Row, bounds: Mapping[str, float]) -> dict[str, Any]:
    example = {
        "folder": row["family"],
        "commands": ["python3 ../tiny.py", *commands(row)],
        "config": f"{row['config']}.yaml",
        "adapter": row.get("adapter") or FAMILIES[row["family"]]["adapter"],
        "seconds": row.get("seconds", 600.0),
    }
    if not bounds:  # plain torch would take other steps: what the row says decides
        return {"example": example, "equal": row["equal"], "at_least": row["at_least"]}
    adapters = row.get("adapters", False)
    equal: dict[str, Any] = {"steps": 20, "moved": _ADAPTERS if adapters else _WEIGHTS, "unmoved": [], "lacking": []}
    at_most = {f"{name}_deviation".replace("losses", "loss"): bounds[name] for name in ("losses", "update", "reload")}
    at_least = {
        "control_idle": _APART * bounds["losses"],
        "control_frozen": 2 * bounds["update"],
        "control_left_out": _APART * bounds["reload"],
        "fall": row.get("fall", 1.0),
    }
    if held_out := bounds.get("held_out"):
        at_most["held_out_deviation"], at_least["control_untrained"] = held_out, _APART * held_out
    if adapters and row.get("merges", True):
        merge = bounds.get("merge", 1e-5)
        equal.update(merged_lacking=[], strayed=[])
        at_most["merge_deviation"], at_least["control_unmerged"] = merge, _APART * merge
    return {
        "example": example,
        "equal": equal | row.get("equal", {}),
        "at_most": at_most,
        "at_least": at_least | row.get("at_least", {}),
    }
