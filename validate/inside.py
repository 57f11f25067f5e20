"""Measures and judges an image inside its own container, by the claims that were built into it.

    docker run --rm --gpus all IMAGE validate

`build` judges with the suite and the claims of its checkout. This copy serves people who have only
the image. With `--nodes`, it measures on two machines together (validate/two_machines.py).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from validate import checks, elsewhere, host_faults, report, suite, terminal, two_machines
from validate.checks import RunAs
from validate.claims import GPU_TIERS, STANDS_ON, Claim, ClaimSet, Tier
from validate.derived import (
    DECLARATION,
    NOTHING_DECLARED,
    RULES,
    derived_claims,
    parse_declaration,
)
from validate.environment import host, nvml
from validate.evidence import Evidence, Outcome
from validate.judge import ClaimVerdict, Verdict, explain, judge
from validate.judging import Status, plural
from validate.nodes import NODES, SHARED_FOLDER

CLAIMS = Path(__file__).resolve().parent.parent / "claims.json"
"""The claims of the image that our build made: it puts them beside the suite."""
_LEFTOVERS = "hygiene/leftovers"
_CANNOT_RUN = 2
"""The exit status of wrong arguments, missing claims, and where nothing can be written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge this image, print the verdict, and return the exit status.

    A claim is a thing that the image must have; claims fall into tiers by what measuring them needs
    (files, a CPU, one GPU, several). Exit status 0: no required claim failed; 1: one failed; 2: it
    could not be measured.

    arguments: those of the command line, without the program's name; None: sys.argv's.
    """
    options = parse_options(arguments)
    try:
        all_claims = _claims_of_image()
    except (OSError, ValueError, LookupError, TypeError) as error:
        _complain(f"{CLAIMS} holds no claims: {error}")
        return _CANNOT_RUN

    if options.nodes:
        of_nodes = all_claims.where(lambda claim: claim.tier is Tier.MULTINODE)
        return _judge_on_two_machines(options, of_nodes)
    # Without --tier, measure all tiers that can be measured here. The output says why others can't.
    tiers = [Tier(tier) for tier in options.tier] if options.tier else default_tiers()
    # Without a driver every GPU claim would fail for the same reason: say it once and stop.
    no_driver = _missing_driver(tiers)
    if no_driver:
        _complain(no_driver)
        return _CANNOT_RUN
    # Some claims can't be measured from inside.
    claims = all_claims.where(lambda claim: not reason_left_out(claim))
    try:
        jobs = len(os.sched_getaffinity(0))
        evidence = _measure(claims.in_tiers(tiers), tiers, jobs=jobs)
    except OSError as error:
        advice = "the suite writes to /tmp: `docker run --tmpfs /tmp:exec ...`."
        _complain(f"{error}; {elsewhere.with_replacements(advice)}")
        return _CANNOT_RUN

    verdict = explain(judge(claims, evidence, tiers))
    # Claims for which this user may not read enough files are not judged.
    verdict, unread = split_unread(verdict)
    left_out = describe_left_out(all_claims.in_tiers(tiers), unread)
    not_run = "" if options.tier else _why_tiers_are_left_out(tiers)
    _print_verdict(verdict, not_run, left_out, as_json=options.json, everything=options.all)
    return 1 if verdict.overall is Status.FAIL else 0


def _judge_on_two_machines(options: argparse.Namespace, claims: ClaimSet) -> int:
    """Measure the claims together with the other node, and return the exit status.

    The first node judges and prints the verdict. The second one ends with the same exit status.
    """
    hosts = options.nodes.split(",")
    place = two_machines.Place(hosts=hosts, node=options.node, shared=options.shared)
    tiers = [Tier.MULTINODE]
    # Claims of a rehearsal, which say how many ranks there are, need no GPU.
    no_driver = "" if claims.claims[0].expect["ranks"] else _missing_driver(tiers)
    if no_driver:
        _complain(no_driver)
        return _CANNOT_RUN
    try:
        meeting = two_machines.join(place, claims)
        # Both nodes must be at the same probe, so each runs one at a time.
        evidence = _measure(
            meeting.claims, tiers, jobs=1, seed=meeting.seed, variables=meeting.variables
        )
    except (two_machines.NodesError, nvml.DriverError, OSError) as error:
        _complain(str(error))
        return _CANNOT_RUN

    faults = evidence.host["faults"]
    if place.node != 0:
        # What the ranks of both nodes measured is with the first one. It must not pass if a probe
        # of this one did not end well.
        lines = []
        for record in evidence.records:
            if record.outcome is not Outcome.COMPLETED:
                lines.append(record.progress_line())
        meeting.peer.send({"problem": "; ".join(lines)} if lines else {"faults": faults})
        status: int = meeting.message.result()["status"]
        return status

    faults_there = meeting.message.result()["faults"]
    faults = [*faults, *(f"{place.other}: {fault}" for fault in faults_there)]
    evidence = replace(evidence, host={"faults": faults})
    verdict = explain(judge(meeting.claims, evidence, tiers))
    _print_verdict(verdict, "", [], as_json=options.json, everything=options.all)
    status = 1 if verdict.overall is Status.FAIL else 0
    meeting.peer.send({"status": status})
    shutil.rmtree(meeting.folder, ignore_errors=True)
    return status


def _claims_of_image() -> ClaimSet:
    """Return all claims (what the image must have), even those that a container can't measure.

    A container can't tell whether its image is our own or one that a user built on ours. So the
    image is held to the claims of a user's image, which our own images also meet. What the user
    changed on purpose stands in the file DECLARATION, if there is one.

    Raises OSError, ValueError, LookupError or TypeError if a file cannot be read or is damaged.
    """
    base = ClaimSet.loads(CLAIMS.read_text(encoding="utf-8"))
    rules = json.loads(CLAIMS.with_name(RULES).read_text(encoding="utf-8"))
    declaration = Path(DECLARATION)
    declared = NOTHING_DECLARED
    if declaration.is_file():
        declared = parse_declaration(declaration.read_text(encoding="utf-8"))
    return derived_claims(base, rules, declared)


def reason_left_out(claim: Claim) -> str:
    """Return why the program can't judge a claim about the image that it runs in; empty: it can.

    A claim is a statement about the image that must hold. Its probe is the function that tests it.
    """
    if not claim.is_of_container:
        return "only an engine's host sees the settings and layers of an image"
    # These probes run as users other than the container's, or in a container for each claim.
    if checks.settings(claim.probe).run_as in (RunAs.ARBITRARY_UID, RunAs.EACH_CLAIM):
        return "they take containers of other users"
    if claim.key == _LEFTOVERS:
        return "a running container has temporary files of its own"
    return ""


def split_unread(verdict: Verdict) -> tuple[Verdict, list[ClaimVerdict]]:
    """Split off the claims of a verdict that are unproven only because of this user's rights.

    Such a claim needs files that only root may read. Returns the verdict without these claims, and
    a list of them. Claims that are UNPROVEN for other reasons stay in the verdict, and keep it from
    PASS.
    """
    judged = []
    unread = []
    for claim_verdict in verdict.claims:
        if _is_unread(claim_verdict):
            unread.append(claim_verdict)
        else:
            judged.append(claim_verdict)
    return replace(verdict, claims=tuple(judged)), unread


def _is_unread(claim_verdict: ClaimVerdict) -> bool:
    """Return whether a claim is UNPROVEN only because this user may not read some files.

    Its probe needs root, and this process is not root. The probe ran to its end, and its evidence
    has `unreadable` files. (A fault in files that it could read would have made the claim FAIL.)
    """
    claim = claim_verdict.claim
    if claim_verdict.status is not Status.UNPROVEN or claim.unproven or os.geteuid() == 0:
        return False
    needs_root = checks.settings(claim.probe).run_as is RunAs.ROOT
    # `judge` adds `probe` to the evidence if the probe did not run to its end.
    ended_early = "probe" in claim_verdict.evidence
    return needs_root and not ended_early and bool(claim_verdict.evidence.get("unreadable"))


def describe_left_out(of_image: ClaimSet, unread: Sequence[ClaimVerdict]) -> list[str]:
    """Return lines that say which claims are not judged here, why, and how they are judged.

    Empty if all are judged.

    of_image: all claims of the image, among which reason_left_out finds those that a container
        can't measure.
    unread: claims that were taken out because this user may not read enough (split_unread).
    """
    # Reason -> the claims that are left out for it, as keys of a dict, so that each is there once.
    names_by_reason: dict[str, dict[str, None]] = {}
    for claim in of_image.claims:
        reason = reason_left_out(claim)
        if not reason:
            continue
        # All claims of the same check are left out, so the name of the check is enough. Only
        # _LEFTOVERS is one of several claims of its check.
        name = claim.key if claim.key == _LEFTOVERS else claim.check
        names_by_reason.setdefault(reason, {})[name] = None
    for claim_verdict in unread:
        key = claim_verdict.claim.key
        names_by_reason.setdefault(claim_verdict.reason, {})[key] = None

    if not names_by_reason:
        return []
    lines = []
    for reason, names in names_by_reason.items():
        lines.append(f"not judged in a container: {', '.join(names)} ({reason})")
    # How to have them judged.
    base = of_image.image.removeprefix(STANDS_ON)
    command = f"nox -s validate -- {base} --image IMAGE"
    lines.append(f"`{command}` in a checkout of truetag judges them, too")
    return lines


def _measure(
    claims: ClaimSet,
    tiers: Sequence[Tier],
    *,
    jobs: int,
    seed: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Evidence:
    """Run the probes that measure these claims, and return the evidence: what they measured.

    Progress is reported on stderr. The evidence also has the faults of the machine.

    tiers: those of the claims, only to be named in the report.
    jobs: how many groups of probes run at once. `seed` and `variables` are those of suite.run.

    Raises OSError if the suite cannot write its temporary files.
    """
    # A claim that is known to be unproven is not measured.
    count = len({claim.probe for claim in claims.claims if not claim.unproven})
    sys.stderr.write(
        f"measuring {claims.image}: {plural(count, 'probe')} of {', '.join(tiers)}, "
        "the slowest take a minute or two\n"
    )
    records = []
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
        # Probes are processes of their own, and read their claims from this file.
        file.write(claims.dumps())
        file.flush()
        path = Path(file.name)
        for record in suite.run(claims, path, jobs=jobs, seed=seed, variables=variables):
            records.append(record)
            sys.stderr.write(f"{len(records)}/{count}  {record.progress_line()}\n")

    faults = host_faults.of_machine(host.read())
    # A container cannot know the digest of its image.
    return Evidence(image=claims.image, digest="", records=tuple(records), host={"faults": faults})


def _print_verdict(
    verdict: Verdict, not_run: str, left_out: Sequence[str], *, as_json: bool, everything: bool
) -> None:
    """Print the verdict to stdout, as JSON or as text.

    not_run: why some tiers were not run. left_out: lines about claims that are not judged here.
    JSON has no place for these, so there they go to stderr. everything: show also the claims that
    hold, in the text.
    """
    if as_json:
        if not_run:
            left_out = [f"not run: {not_run}", *left_out]
        for line in left_out:
            sys.stderr.write(f"{line}\n")
        output = json.dumps(report.json_data(verdict), indent=1)
    else:
        width = terminal.width_of(sys.stdout)
        output = report.text(
            verdict, width=width, everything=everything, not_run=not_run, left_out=left_out
        )
    sys.stdout.write(output + "\n")


def default_tiers() -> list[Tier]:
    """Return the tiers that can be measured here, by the number of GPUs that the driver names.

    A tier is what a measurement needs: files only, a CPU, one GPU, several GPUs. Without a driver
    there are no GPUs.
    """
    try:
        gpu_count = len(nvml.read_by_nvml()["gpus"])
    except nvml.DriverError:
        gpu_count = 0

    tiers = [Tier.STATIC, Tier.CPU]
    if gpu_count >= 1:
        tiers.append(Tier.GPU)
    if gpu_count >= 2:
        tiers.append(Tier.MULTIGPU)
    return tiers


def _why_tiers_are_left_out(tiers: Sequence[Tier]) -> str:
    """Return why these default tiers are not all; empty if they are."""
    if Tier.GPU not in tiers:
        return elsewhere.with_replacements(
            "this container was given no GPU: `docker run --gpus all ...` gives it the machine's."
        )
    if Tier.MULTIGPU not in tiers:
        return "this container was given one GPU"
    return ""


def _missing_driver(tiers: Sequence[Tier]) -> str:
    """Return why the tiers that need a GPU cannot be measured here.

    Empty: they can, or none of these tiers needs one. Whether there is a driver is told by loading
    its library, libcuda.
    """
    gpu_tiers = [tier for tier in tiers if tier in GPU_TIERS]
    if not gpu_tiers:
        return ""
    error = nvml.libcuda_error()
    if not error:
        return ""
    return elsewhere.with_replacements(
        f"tier {gpu_tiers[0]} needs a GPU, and this container was given none ({error}): "
        "`docker run --gpus all ...`."
    )


def _complain(text: str) -> None:
    """Print an error to stderr."""
    sys.stderr.write(f"validate: {terminal.printable(text)}\n")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of `validate`'s command line in an image (None: sys.argv's).

    Raises SystemExit if they are wrong, or do not go together.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.nodes is None:
        return options
    hosts = options.nodes.split(",")
    if len(hosts) != NODES or len(set(hosts)) != NODES or "" in hosts:
        parser.error(f"--nodes takes two hosts, `--nodes gpu-1,gpu-2`, not {options.nodes!r}")
    if options.node not in range(NODES):
        parser.error(
            "which of the two nodes is this machine? Add --node 0 on the first host of --nodes, "
            "and --node 1 on the second (in a task of Slurm, SLURM_NODEID says it)"
        )
    if options.tier:
        parser.error("--nodes measures the tier multinode only: leave out --tier")
    return options


def _node_of_slurm() -> int | None:
    """Return the number of this node in a task of Slurm; None: it is not known."""
    number = os.environ.get("SLURM_NODEID", "")
    return int(number) if number.isdecimal() else None


def _parser() -> argparse.ArgumentParser:
    """Return the parser of `validate`'s command line in an image."""
    parser = argparse.ArgumentParser(
        prog="validate", description="Judge this image by its claims.", allow_abbrev=False
    )
    parser.add_argument(
        "--tier",
        action="append",
        # Two nodes are two containers: see --nodes.
        choices=[tier.value for tier in Tier if tier is not Tier.MULTINODE],
        help=(
            "repeat it for several (default: static and cpu, gpu where there is a GPU, multigpu "
            "where there are several)"
        ),
    )
    parser.add_argument(
        "--all", action="store_true", help="also show the claims that hold, not just how many"
    )
    parser.add_argument(
        "--json", action="store_true", help="verdict.json, on stdout and nothing else"
    )
    nodes = parser.add_argument_group(
        "two machines", "Start it on both at once, in the same image. The first prints the verdict."
    )
    nodes.add_argument("--nodes", metavar="HOST,HOST", help="measure the tier multinode on both")
    nodes.add_argument(
        "--node",
        metavar="NUMBER",
        type=int,
        default=_node_of_slurm(),
        help="which of the two this machine is: 0 or 1 (default: SLURM_NODEID)",
    )
    nodes.add_argument(
        "--shared",
        metavar="FOLDER",
        type=Path,
        default=Path(SHARED_FOLDER),
        help=f"a folder that both see (default: {SHARED_FOLDER}, where you mount it)",
    )
    return parser
