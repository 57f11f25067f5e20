"""Arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from images.config import selectors as select
from images.engine import gpus
from validate.claims import Tier

Selectors = Annotated[list[str] | None, typer.Argument(metavar="SELECTOR...", help=f"Which images: {select.HELP}.")]
OneName = Annotated[str, typer.Argument(metavar="NAME", help="An image name, as `plan` prints it.")]
EngineUrl = Annotated[str | None, typer.Option("--engine", metavar="URL", help="Docker Engine; else DOCKER_HOST.")]
Gpus = Annotated[str, typer.Option("--gpus", metavar=gpus.HELP, help="How the trial's container gets the host's GPUs.")]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where results go.")]
Tiers = Annotated[
    list[Tier] | None,
    typer.Option("--tier", help="What to measure (repeat it); default: all that this machine can."),
]
ToRepository = Annotated[str, typer.Option("--to", metavar="REGISTRY/REPOSITORY", help="Where it is published.")]
GateTiers = Annotated[
    str, typer.Option("--gate", metavar="TIERS", help="Tiers that must be proven (static,cpu); default: the matrix's.")
]
RemoteRef = Annotated[str, typer.Argument(metavar="REF", help="A published image: HOST/NAME:TAG or HOST/NAME@DIGEST.")]
PublicKey = Annotated[str, typer.Option("--key", metavar="KEY", help="Believe only what this cosign key signed.")]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; fail if something would change.")]
