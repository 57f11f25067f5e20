"""The site: static pages of validation runs.

It catches an old verdict that is taken for a new one, and a verdict of one build that is taken for another's.
"""

import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import MatrixFile, OutFolder, PublicKey
from images.errors import wrong
from images.locking import lock_file
from images.nightly import results
from images.planning import plan
from images.publish import signing
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import pages, runs
from images.site.inputs import SiteInputs
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext


def site(
    out: OutFolder = None,
    # Everybody who can push to a repository can attach an attestation there: --key counts only what is signed.
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
    """Static pages: what was validated of each image, and when.

    Made from matrix, facts and all recorded validation runs; by default into out/site.
    """
    sources = common.sources(matrix)
    out = out or sources.workspace.out / "site"
    try:
        today = date.fromisoformat(day) if day else datetime.now(UTC).date()
    except ValueError:
        raise wrong(f"--date {day}", "is no date", "write it as 2026-11-21") from None
    if key:
        signing.require(key)
    folders = recorded or [sources.workspace.results]
    nightly = results.read(*(folder / "nightly" for folder in folders))
    found = [*runs.recorded(folders), *runs.of_nightly(nightly)]
    images = [one.image for one in plan.plan(sources) if one.image]
    states = lock_file.states(images, sources.workspace.locks)
    blocked = {
        one.lock_name: why
        for one in images
        if (why := lock_file.why_blocked(one, states[str(one.name)]))
    }
    locked = {image.lock_name: image for image in images if image.lock_name not in blocked}
    locks = {name: lock_file.read(image, sources.workspace.locks) for name, image in locked.items()}
    claims = {
        str(one.name): image_claims(ClaimContext(image=one, facts=sources.facts)).claims
        for one in images
    }
    published: list[runs.Published] = []
    if source:
        with Registry(Repository.parse(source)) as registry:
            published, attached = runs.published(registry, [*claims], key, common.say)
        found += attached
    known = SiteInputs(
        sources=sources,
        today=today,
        runs=found,
        nightly=nightly,
        repository=source,
        published=published,
        closures={name: lock.versions(lock.inputs.layers) for name, lock in locks.items()},
        blocked=blocked,
        claims=claims,
    )
    files = pages.files(known)
    write(files, out)
    size = sum(map(len, files.values()))
    typer.echo(
        f"{out / 'index.html'}: {len(files)} files, {size / 1e6:.1f} MB, from {len(found)} runs"
    )


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a site, and remove what an earlier one left in the site's own folders."""
    for own in pages.OWN_FOLDERS:
        shutil.rmtree(folder / own, ignore_errors=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
