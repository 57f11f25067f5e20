"""`fleet render --kubernetes` and `fleet collect`: manifests for a cluster, and the verdict on its logs."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from images.building.trying import Wanted
from images.commands.common import talk
from images.config.names import ImageName
from images.engine import Engine
from images.errors import Problem, UserError
from images.fleet.config import Fleet
from images.fleet.gather import Holding, Located
from images.fleet.kubernetes import collect, logs, reach, render
from images.fleet.kubernetes.collect import Collected
from images.fleet.kubernetes.render import Rendered
from images.fleet.ledger import Ledger
from images.fleet.model import Job
from images.fleet.planning import PlannedPair
from images.planning import plan
from images.validation import trial
from validate.claims import ClaimSet

FOLDER = "kubernetes"
MANIFESTS = "manifests.yaml"
_OURS = f"-l {render.LABEL}={render.OWNER}"
_LOGS = f"kubectl logs {_OURS} --all-containers --tail=-1 --ignore-errors"
"""Without --ignore-errors, the first container that has no log hides those after it."""


@dataclass(frozen=True, kw_only=True)
class KubernetesArguments:
    """What is rendered, and where logs are."""

    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="With `render`: write Kubernetes Jobs.")] = False
    logs: Annotated[
        list[Path] | None,
        typer.Option("--logs", metavar="FILE", help="With `collect`: what `kubectl logs` printed (repeat it)."),
    ] = None


class _WithoutAliases(yaml.SafeDumper):
    """Writes what stands at two places twice: people read manifests, and tools that add labels read them, too."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def require_kubernetes(asked: KubernetesArguments) -> None:
    """Raises UserError: nobody said for what to render."""
    if not asked.kubernetes:
        cause = "names no format of manifests; Kubernetes is the only one"
        raise UserError(Problem(where="fleet render", cause=cause, then="add --kubernetes"))


def within_reach(planned: Sequence[PlannedPair], located: Sequence[Located]) -> tuple[PlannedPair, ...]:
    """The plan without the pairs that a Job would leave as they are. Says which those are, and what judges them."""
    left = reach.out_of_reach(planned, located)
    if left:
        lacks = ", ".join(sorted({key for one in left for key in one.lacks}))
        names = ", ".join(sorted({one.pair.image for one in left}))
        then = f"`nox -s validate -- NAME` judges these of {names}"
        typer.echo(f"{len(left)} pairs get no Job: their records lack only what one can't give ({lacks}); {then}")
    return tuple(one for one in planned if one not in left)


def write(
    jobs: Mapping[str, Sequence[Job]], located: Sequence[Located], holding: Holding, fleet: Fleet, ledger: Ledger
) -> None:
    """Write the manifests of jobs (machines -> jobs), and what `collect` needs. Raises UserError."""
    by_digest = {(one.planned.name, one.planned.digest): one for one in located}
    due = [(job, by_digest[job.image, job.digest], on) for on, group in jobs.items() for job in group]
    if not due:
        talk.print("there is nothing to render: `nox -s fleet -- plan` says of each pair why")
        return
    asked = [_claims(job, one, holding) for job, one, _ in due]
    suite = {
        path: content for one in asked for path, content in trial.suite_files(one).items() if path != "claims.json"
    }
    chosen = [
        (_rendered(job, one, claims, suite, ledger), fleet.workers[on])
        for (job, one, on), claims in zip(due, asked, strict=True)
    ]
    file = keep(ledger.folder / FOLDER, [one for one, _ in chosen], render.manifests(chosen, suite))
    for line in told(file, ledger.folder, [one for one, _ in chosen]):
        typer.echo(line)


def keep(folder: Path, rendered: Sequence[Rendered], manifests: Sequence[Mapping[str, Any]]) -> Path:
    """Put a rendering in the place of the one before it, whose jobs nobody applies any more. Gives the manifests."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("*.json"):
        earlier.unlink()
    for one in rendered:
        (folder / f"{one.job.key}.json").write_text(one.model_dump_json() + "\n", encoding="utf-8")
    file = folder / MANIFESTS
    text = yaml.dump_all(manifests, Dumper=_WithoutAliases, sort_keys=False, width=120)
    file.write_text(text, encoding="utf-8")
    return file


def told(file: Path, out: Path, rendered: Sequence[Rendered]) -> Iterator[str]:
    """What rendering prints. Of a Job of the same name, an ended one does not run again, and no template changes."""
    yield f"{len(rendered)} jobs in {file}. No cluster was asked. Next:"
    yield from (f"  {line}" for line in then(file, out))
    yield "If one of these Jobs failed, or was applied before fleet.yaml changed, delete it before you apply:"
    yield f"  kubectl delete job --ignore-not-found {' '.join(one.name for one in rendered)}"


def then(file: Path, out: Path) -> tuple[str, ...]:
    """What a person types after rendering. `kubectl wait` knows one condition, and would not end with a failed Job.

    A line of its own for each Job, with the name: `$()` takes empty lines at the end away. No output at all is no Job.
    """
    states = '{range .items[*]}{.metadata.name} {.status.conditions[*].type}{"\\n"}{end}'
    asked = f"s=$(kubectl get job {_OURS} -o jsonpath='{states}')"
    ended = "! grep -qvE '^$|Complete|Failed' <<<\"$s\""
    return (
        # From the client, `apply` keeps the object in an annotation (256 KiB at most), and the suite is larger.
        f"kubectl apply --server-side -f {file}",
        f"until {asked} && {ended}; do kubectl get pods {_OURS}; sleep 30; done",
        f"{_LOGS} >logs.txt",
        f"truetag fleet collect --logs logs.txt --out {out}",
    )


def _rendered(job: Job, located: Located, claims: ClaimSet, suite: Mapping[str, bytes], ledger: Ledger) -> Rendered:
    earlier = ledger.record(job.key)
    home = located.found.home if located.found else ""
    return Rendered.of(job, home, claims, suite=suite, replaces=earlier.ended if earlier else None)


def _claims(job: Job, located: Located, holding: Holding) -> ClaimSet:
    found = located.found
    planned = plan.plan_one(ImageName.parse(job.image), holding.sources)
    if found is None or planned.image is None:
        raise ValueError(f"{job.key} is due, and nobody found its image")
    wanted = Wanted(
        image=planned.image, sources=holding.sources, cache=holding.cache, tiers=job.tiers, only=holding.only
    )
    return wanted.claims(found.described, job.tiers, render.on_gpus(job.arch, job.gpus)).of(job.tiers)


def read(asked: KubernetesArguments, ledger: Ledger, engine: Engine | None) -> tuple[Collected, ...]:
    """The outcomes of the jobs that logs speak of, and of those that have no record yet. Raises UserError."""
    if not asked.logs:
        then = f"`{_LOGS} >FILE`, then --logs FILE"
        raise UserError(Problem(where="fleet collect", cause="no logs are named", then=then))
    rendered = [_read(file) for file in sorted((ledger.folder / FOLDER).glob("*.json"))]
    if not rendered:
        then = "`nox -s fleet -- render --kubernetes SELECTOR...` with the same --out"
        raise UserError(Problem(where=str(ledger.folder), cause="nothing was rendered there", then=then))
    found = logs.read([_text(file) for file in asked.logs], datetime.now(UTC))
    named = {one.job for one in found}
    wanted = [one for one in rendered if one.job.key in named or not ledger.record(one.job.key)]
    return tuple(collect.collected(wanted, found, ledger, engine))


def require_verdicts(found: Sequence[Collected]) -> None:
    """Raises UserError for Jobs without a verdict, those that may still run last."""
    without = [one for one in found if one.verdict is None]
    problems = [_lost(one) for one in without if not one.may_run] + [_not_yet(one) for one in without if one.may_run]
    if problems:
        raise UserError(problems, code=1)


def _lost(one: Collected) -> Problem:
    then = f"collect whole logs of it; {_anew(one.name)}"
    return Problem(where=f"{one.job.key} (Job {one.name})", cause=one.cause, then=then)


def _not_yet(one: Collected) -> Problem:
    then = f"wait for its pods, and collect again; {_anew(one.name)}"
    return Problem(where=f"not yet collected: Job {one.name}", cause=f"{one.job.key}: {one.cause}", then=then)


def _anew(name: str) -> str:
    """Deleting a Job ends its pods, and takes their logs."""
    ended = f"only if `kubectl get job {name}` shows Complete or Failed"
    return f"{ended}, `kubectl delete job {name}` and apply it again (`--server-side`)"


def _read(file: Path) -> Rendered:
    try:
        return Rendered.model_validate_json(file.read_bytes())
    except ValueError as error:
        cause = f"is no rendered job: {' '.join(str(error).split())[:200]}"
        raise UserError(Problem(where=str(file), cause=cause, then="take it away, and render again"), code=1) from None


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        then = "name a file that `kubectl logs` was written to"
        raise UserError(Problem(where=f"--logs {file}", cause=f"can't be read: {error.strerror}", then=then)) from None
    # PowerShell's `>` writes UTF-16.
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf_16 else "utf-8", errors="replace")
