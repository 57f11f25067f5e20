"""`validate`: judges an image where its user is, by the claims that were baked into it.

    docker run --rm --gpus all IMAGE validate

The build judges with the suite and claims of its own checkout; this copy serves whoever has the image alone.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from validate import checks, host_faults, report, suite, terminal
from validate.claims import ClaimSet, Tier
from validate.environment import host, nvml
from validate.evidence import Evidence
from validate.judge import explain, judge
from validate.judging import Status

CLAIMS = Path(__file__).resolve().parent.parent / "claims.json"
"""Beside the suite, where the build put them."""
_WRONG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge here. 0: nothing failed; 1: a claim failed; 2: wrong arguments, no claims, nowhere to write."""
    options = _parser().parse_args(arguments)
    try:
        claims = ClaimSet.loads(CLAIMS.read_text(encoding="utf-8")).inside()
    except (OSError, ValueError, LookupError, TypeError) as error:
        return _complain(f"{CLAIMS} holds no claims: {error}")
    # What a validation run starts as another user can't be measured by the image's own.
    own_user = checks.RunAs.IMAGE_USER
    other_users = [
        one.probe for one in claims.claims if checks.settings(one.probe).run_as is not own_user
    ]
    claims = claims.less(other_users)
    tiers = [Tier(tier) for tier in options.tier] if options.tier else default_tiers()
    without = _without_driver(tiers)
    if without:
        return _complain(without)
    count = len({claim.probe for claim in claims.in_tiers(tiers).claims if not claim.unproven})
    sys.stderr.write(
        f"measuring {claims.image}: {count} probes of {', '.join(tiers)}, the slowest take a minute or two\n"
    )
    try:
        # A container can't know its image's digest, so there is none.
        records = []
        for record in suite.run(claims.in_tiers(tiers), CLAIMS, jobs=len(os.sched_getaffinity(0))):
            records.append(record)
            told = f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})"
            sys.stderr.write(f"{len(records)}/{count}  {told}\n")
        faults = host_faults.of_machine(host.read())
        evidence = Evidence(
            image=claims.image, digest="", records=tuple(records), host={"faults": faults}
        )
    except OSError as error:
        return _complain(f"{error}; the suite writes to /tmp: `docker run --tmpfs /tmp:exec ...`")
    verdict = explain(judge(claims, evidence, tiers))
    not_run = ""
    if not options.tier and Tier.GPU not in tiers:
        not_run = (
            "this container was given no GPU: `docker run --gpus all ...` gives it the machine's"
        )
    elif not options.tier and Tier.MULTIGPU not in tiers:
        not_run = "this container was given one GPU"
    if options.json:
        if not_run:
            sys.stderr.write(f"not run: {not_run}\n")
        told = json.dumps(report.json_data(verdict), indent=1)
    else:
        width = terminal.width_of(sys.stdout)
        told = report.text(verdict, width=width, everything=options.all, not_run=not_run)
    sys.stdout.write(told + "\n")
    return 1 if verdict.claims_with(Status.FAIL) else 0


def default_tiers() -> list[Tier]:
    """What can be measured here: the GPU tier where the driver names a GPU, several GPUs' where it names more."""
    try:
        count = len(nvml.read_by_nvml()["gpus"])
    except nvml.DriverError:
        count = 0
    return [
        Tier.STATIC,
        Tier.CPU,
        *([Tier.GPU] if count else []),
        *([Tier.MULTIGPU] if count > 1 else []),
    ]


def _without_driver(tiers: Sequence[Tier]) -> str:
    """Why there is no GPU to measure on, said once in place of once a claim; empty where a driver is there."""
    asked = next((tier for tier in tiers if tier in (Tier.GPU, Tier.MULTIGPU)), None)
    absent = nvml.libcuda_error() if asked else ""
    if not absent:
        return ""
    return f"tier {asked} needs a GPU, and this container was given none ({absent}): `docker run --gpus all ...`"


def _complain(text: str) -> int:
    sys.stderr.write(f"validate: {text}\n")
    return _WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="validate", description="Judge this image by its claims.", allow_abbrev=False
    )
    parser.add_argument(
        "--tier",
        action="append",
        choices=[tier.value for tier in Tier],
        help="repeat it for several (default: static and cpu, and gpu where there is one)",
    )
    parser.add_argument(
        "--all", action="store_true", help="also show the claims that hold, not just how many"
    )
    parser.add_argument(
        "--json", action="store_true", help="verdict.json, on stdout and nothing else"
    )
    return parser
