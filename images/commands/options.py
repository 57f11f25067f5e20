"""Arguments and options that several verbs share, each spelled the same everywhere."""

import os
from pathlib import Path
from typing import Annotated

import typer

from images.commands import SELECTOR
from images.config import selectors as select
from images.errors import wrong
from images.hardware.inventory import GpuMode
from validate.claims import Tier

_SELECTORS = typer.Argument(
    metavar=SELECTOR, help=f"Which images: {select.HELP}.", show_default=False
)
Selectors = Annotated[list[str] | None, _SELECTORS]
SomeSelectors = Annotated[list[str], _SELECTORS]
OneName = Annotated[str, typer.Argument(metavar="NAME", help="An image name, as `plan` prints it.")]
MatrixFile = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="What to build; default: ./matrix.yaml, else the checkout's. "
        "Its folder has locks/, results/ and out/.",
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FOLDER", help="Where results go; default: out/ beside the matrix."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")]
Passed = Annotated[
    bool, typer.Option("--all", help="Also show the claims that hold, not just how many.")
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="Measure anew, also what an earlier run measured with the same inputs."
    ),
]
Check = Annotated[
    bool, typer.Option("--check", help="Write nothing; fail if something would change.")
]
EngineUrl = Annotated[
    str | None,
    typer.Option("--engine", metavar="URL", help="Docker Engine; else DOCKER_HOST."),
]
Gpus = Annotated[
    GpuMode,
    typer.Option(
        "--gpus", metavar="auto|none|nvidia|host-driver", help="How containers get the host's GPUs."
    ),
]
Tiers = Annotated[
    list[Tier] | None,
    typer.Option(
        "--tier",
        help="What to measure (repeat it); default: all that this machine can, without multinode.",
    ),
]
BaseImage = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="auto|REF",
        help="What to build on: the matrix's base image, or a custom one.",
    ),
]
WheelFolder = Annotated[
    Path | None,
    typer.Option("--wheelhouse", metavar="FOLDER", help="Folder of wheels that no index has."),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Reach no network: every wheel lies in the wheelhouse.")
]
ToRepository = Annotated[
    str, typer.Option("--to", metavar="REGISTRY/REPOSITORY", help="Where it is published.")
]
GateTiers = Annotated[
    str,
    typer.Option(
        "--gate", metavar="TIERS", help="Tiers that must pass (static,cpu); default: the matrix's."
    ),
]
RemoteRef = Annotated[
    str, typer.Argument(metavar="REF", help="A published image: HOST/NAME:TAG or HOST/NAME@DIGEST.")
]
PublicKey = Annotated[
    str, typer.Option("--key", metavar="KEY", help="Accept only what this cosign key signed.")
]


def require_writable(folder: Path, *, another: str = "with --out") -> Path:
    """Return a folder after checking, before any work, that it can be written or made.

    Raises UserError if it cannot. `another`: how the command is given another folder.
    """
    # A folder that does not exist will be made in the first of its parents that does.
    existing = folder.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise wrong(str(existing), "this is no folder", f"name a folder {another}")
    if not os.access(existing, os.W_OK | os.X_OK):
        cause = "you may not write to this folder"
        then = f"change its permissions, or name another folder {another}"
        if existing != folder.absolute():
            cause += f", and {folder} would have to be made in it"
            then = f"make {folder} as a folder that you may write to, or name another {another}"
        raise wrong(str(existing), cause, then)
    return folder
