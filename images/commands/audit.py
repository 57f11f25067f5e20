"""The verb `audit`: look for faults in any image or Python environment, whoever built it."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from images.audit import measure
from images.audit.expected import AUDIT_JUDGES
from images.audit.measure import Options
from images.building import run_files
from images.commands import common
from images.commands.options import EngineUrl, Json, OutFolder, Passed, require_writable
from images.config import matrix as matrix_files
from images.engine import private_engine
from images.errors import wrong
from images.planning import chooser
from validate import report
from validate.evidence import Evidence
from validate.judge import explain, judge
from validate.judging import Status

NOTICE = (
    "This is an audit, not a validation: nobody said what should be in it. PASS means that no "
    "fault was found by rules that hold for every image."
)
_LIST_OF_PACKAGES = re.compile(
    r"(^-$|\.(txt|lock|toml)$|(^|/)(Dockerfile|Containerfile)[^/]*$|\.Dockerfile$)"
)
"""The name of a requirements file, lock or Dockerfile; `-` is one on the standard input."""


def audit(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF|FOLDER", help="Any image, or the folder of a Python environment."
        ),
    ],
    gpu: Annotated[
        str,
        typer.Option("--gpu", metavar="MODEL", help="The GPU that it has to run on: B200, say."),
    ] = "",
    arch: Annotated[
        str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")
    ] = "",
    driver: Annotated[
        str, typer.Option("--driver", metavar="VERSION", help="That machine's driver.")
    ] = "",
    run: Annotated[
        bool,
        typer.Option("--run/--no-run", help="Also run the image's own Python, without a network."),
    ] = True,
    everything: Passed = False,
    as_json: Json = False,
    out: OutFolder = None,
    engine: EngineUrl = None,
) -> None:
    """Look for faults in any image, or in a Python environment of this machine.

    An audit is no validation. OUT gets the same files as after `validate`. Nothing of an
    environment's folder runs. Exits with 1 for a fault that breaks something.
    """
    _require_auditable(reference)
    if out:
        require_writable(out)
    # The machine that it has to run on; None: nothing is claimed about one.
    machine = None
    if gpu or arch or driver:
        models = [gpu] if gpu else []
        archs = [arch] if arch else []
        machine = chooser.machine_from_options(models, archs, driver)

    options = Options(facts=matrix_files.load_facts(), machine=machine, run=run, say=common.tell)
    folder = _path_of(reference)
    if folder.is_dir():
        evidence = measure.audit_folder(folder, options)
    else:
        evidence = _audit_image(reference, engine, options)
    verdict = explain(judge(evidence.claim_set, evidence, judges=AUDIT_JUDGES))

    if out:
        out.mkdir(parents=True, exist_ok=True)
        run_files.record_validation(out, evidence, verdict)
    if as_json:
        typer.echo(json.dumps(report.json_data(verdict), indent=1))
    else:
        common.show(report.lines(verdict, everything=everything))
        common.say(NOTICE)
    has_fault = any(failure.claim.required for failure in verdict.claims_with(Status.FAIL))
    raise typer.Exit(1 if has_fault else 0)


def _require_auditable(reference: str) -> None:
    """Raise UserError if a file or a list of packages is named, and no image and no environment."""
    if _LIST_OF_PACKAGES.search(reference):
        then = (
            "only what is installed can be audited: install a list of packages into an empty "
            "environment (`uv venv checked && uv pip install --python checked -r "
            "requirements.txt`) and audit the folder ./checked, or build a Dockerfile and audit "
            "the image"
        )
        raise wrong(reference, "is a list of packages, no image and no environment", then)
    # No name of an image begins so.
    is_path = reference.startswith(("/", "./", "../", "~"))
    if is_path and not _path_of(reference).exists():
        then = f"{measure.NAME_A_FOLDER}; or name an image: `docker image ls` prints those here"
        raise wrong(reference, "there is no such folder", then)
    if Path(reference).is_file():
        then = (
            "audit the folder of an environment, or an image of the engine: `docker load -i FILE` "
            "reads the archive of `docker save`, and prints the image's name"
        )
        raise wrong(reference, "is a file, no image and no environment", then)


def _path_of(reference: str) -> Path:
    """Return the path that a person wrote, with `~` as the home folder.

    A `~NAME` of a user whom this machine does not have stays as it is.
    """
    path = Path(reference)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _audit_image(reference: str, engine: str | None, options: Options) -> Evidence:
    """Return the evidence about an image, which is pulled first if the engine lacks it.

    `engine` is the URL of the option --engine. Raises UserError.
    """
    with private_engine.open_engine(engine, on_progress=common.say) as docker_engine:
        if docker_engine.find(reference) is None:
            common.say(f"pulling {reference}")
            docker_engine.pull(reference)
        return measure.audit_image(docker_engine, reference, options)
