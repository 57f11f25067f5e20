"""The verb `site`: write static web pages that show what was validated of each image, and when.

They catch an old verdict that is taken for a new one, and a verdict of one build that is taken for
that of another.
"""

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import MatrixFile, OutFolder, PublicKey
from images.errors import wrong
from images.locking import layer_record, lock_file
from images.locking.lock_file import Lock
from images.nightly import results
from images.planning import plan
from images.planning.image import Image
from images.publish import signing
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import pages, runs, status
from images.site.inputs import SiteInputs
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from validate.judging import plural


def site(
    out: OutFolder = None,
    # Everybody who can push to a repository can attach an attestation there: --key counts only what
    # is signed.
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="REPOSITORY", help="Where images are published, with attestations."
        ),
    ] = "",
    key: PublicKey = "",
    # The nightly workflow's results are on a branch of their own, in a second folder.
    recorded: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            metavar="FOLDER",
            help="Has runs.jsonl, nightly/ (repeat it); default: results.",
        ),
    ] = None,
    # The same inputs and date give the same bytes, so that a rebuilt site shows what changed.
    day: Annotated[
        str, typer.Option("--date", metavar="YYYY-MM-DD", help="Date of the site; default: today.")
    ] = "",
    matrix: MatrixFile = None,
) -> None:
    """Write static pages: what was validated of each image, and when.

    Made from matrix, facts and all recorded validation runs; by default into out/site.
    """
    sources = common.sources(matrix)
    out = out or sources.workspace.out / "site"
    today = parse_day(day)
    if key:
        signing.require_key(key)

    # What the matrix claims of each image today, and the digests that builds give its layers.
    images = [planned.image for planned in plan.plan(sources) if planned.image]
    record = layer_record.read(sources.workspace.locks)
    claims, layers = {}, {}
    for image in images:
        name = str(image.name)
        claims[name] = image_claims(ClaimContext(image=image, facts=sources.facts)).claims
        layers[name] = status.layers_of_today(record, name)

    # What was validated: recorded runs, those of the nightly jobs, and those that are attached to
    # published images.
    folders = recorded or [sources.workspace.results]
    for folder in recorded or []:
        if not folder.is_dir():
            then = "name a folder with a runs.jsonl, such as `results` of a checkout"
            raise wrong(f"--results {folder}", "there is no such folder", then)
    nightly = results.read(*(folder / "nightly" for folder in folders))
    all_runs = [*runs.recorded_runs(folders), *runs.nightly_runs(nightly)]
    published: dict[str, runs.Published] = {}
    if source:
        with Registry(Repository.parse(source)) as registry:
            published, attached_runs = runs.load_published(registry, [*claims], key, common.say)
        all_runs += attached_runs

    # Which images can be built today, and of which packages.
    blocked = blocked_reasons(images, sources.workspace.locks)
    locks = read_locks(images, blocked, sources.workspace.locks)
    inputs = SiteInputs(
        sources=sources,
        today=today,
        runs=all_runs,
        nightly=nightly,
        repository=source,
        published=published,
        closures={name: lock.versions(lock.inputs.layers) for name, lock in locks.items()},
        lock_hashes={name: lock.hash for name, lock in locks.items()},
        blocked=blocked,
        claims=claims,
        layers=layers,
    )
    files = pages.render_files(inputs)
    write(files, out)
    size = sum(map(len, files.values()))
    made = f"{plural(len(files), 'file')}, {size / 1e6:.1f} MB"
    typer.echo(f"{out / 'index.html'}: {made}, from {plural(len(all_runs), 'run')}")


def parse_day(day: str) -> date:
    """Return the day of the option --date; today (UTC) if it is empty. Raises UserError."""
    if not day:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(day)
    except ValueError:
        raise wrong(f"--date {day}", "this is no date", "write it as 2026-11-21") from None


def blocked_reasons(images: Sequence[Image], locks: Path) -> dict[str, str]:
    """Return the locks that can't be used: name of the lock -> why. Usable ones are left out.

    `locks` is the folder with all locks.
    """
    states = lock_file.states(images, locks)
    reasons = {}
    for image in images:
        reason = lock_file.why_blocked(image, states[str(image.name)])
        if reason:
            reasons[image.lock_name] = reason
    return reasons


def read_locks(images: Sequence[Image], blocked: Mapping[str, str], locks: Path) -> dict[str, Lock]:
    """Return the locks of these images: name of the lock -> lock.

    Those that `blocked` has (`blocked_reasons`) are left out. `locks` is the folder with all locks.
    """
    usable = [image for image in images if image.lock_name not in blocked]
    return {image.lock_name: lock_file.read(image, locks) for image in usable}


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a site (path -> content) below a folder.

    First removes what an earlier site left in its own folders.
    """
    for own in pages.OWN_FOLDERS:
        shutil.rmtree(folder / own, ignore_errors=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
