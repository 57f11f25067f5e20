"""Arguments and options that several verbs share, each spelled the same everywhere."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from images.config import paths
from images.config import selectors as select
from images.errors import Problem, UserError
from validate.claims import Tier

_SELECTORS = typer.Argument(metavar="SELECTOR...", help=f"Which images: {select.HELP}.", show_default=False)
Selectors = Annotated[list[str] | None, _SELECTORS]
SomeSelectors = Annotated[list[str], _SELECTORS]
OneName = Annotated[str, typer.Argument(metavar="NAME", help="An image name, as `plan` prints it.")]
MatrixFile = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="What to build; default: ./matrix.yaml, else the checkout's. Its folder has locks/, results/ and out/.",
    ),
]
OutFolder = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Where results go; default: out/ beside the matrix.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; fail if something would change.")]
EngineUrl = Annotated[
    str | None,
    typer.Option("--engine", metavar="URL", help="Docker Engine; else DOCKER_HOST. `apptainer` judges without one."),
]
Gpus = Annotated[
    str,
    typer.Option(
        "--gpus", metavar="auto|none|nvidia|cdi|host-driver[:FOLDER]", help="How containers get the host's GPUs."
    ),
]
Tiers = Annotated[
    list[Tier] | None,
    typer.Option("--tier", help="What to measure (repeat it); default: all that this machine can."),
]
BaseImage = Annotated[
    str, typer.Option("--base", metavar="auto|REF", help="What to build on: the matrix's base image, or a custom one.")
]
WheelFolder = Annotated[
    Path | None, typer.Option("--wheelhouse", metavar="FOLDER", help="Folder of wheels that no index has.")
]
WheelMirror = Annotated[
    str,
    typer.Option(
        "--wheel-mirror",
        metavar="URL",
        help="Folder of a web server that has the official wheels by their file names; the hashes stay the same.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Reach no network: every wheel lies in the wheelhouse.")]
ToRepository = Annotated[str, typer.Option("--to", metavar="REGISTRY/REPOSITORY", help="Where it is published.")]
GateTiers = Annotated[
    str,
    typer.Option("--gate", metavar="TIERS", help="Tiers that must pass (static,cpu); default: the matrix's."),
]
RemoteRef = Annotated[str, typer.Argument(metavar="REF", help="A published image: HOST/NAME:TAG or HOST/NAME@DIGEST.")]
PublicKey = Annotated[str, typer.Option("--key", metavar="KEY", help="Accept only what this cosign key signed.")]


def require_writable(folder: Path) -> Path:
    """See that a folder can be written, or made, before any work. Returns it. Raises UserError."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        raise UserError(Problem(where=str(there), cause="is no folder", then="name another one"))
    if not os.access(there, os.W_OK | os.X_OK):
        then = "change its permissions, or name another folder"
        raise UserError(Problem(where=str(there), cause="may not be written by this user", then=then))
    return folder


# --- of verbs that are no plain functions yet ------------------------------------------------------------------------


def in_workspace(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """A default folder lies in the workspace; one that was named is relative to the current folder, as usual."""
    source = ctx.get_parameter_source(param.name or "")
    return paths.in_workspace(value) if source is not None and source.name == "DEFAULT" else value


def results_folder(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """The same for a folder that a verb writes. Raises UserError before any work where it can't be written."""
    return require_writable(in_workspace(ctx, param, value))


Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where results go.", callback=results_folder)]
ReadOut = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where results go.", callback=in_workspace)]


@dataclass(frozen=True, kw_only=True)
class InputArguments:
    """What a build stands on, and where its wheels come from."""

    base: BaseImage = "auto"
    wheelhouse: WheelFolder = None


@dataclass(frozen=True, kw_only=True)
class ImageInputArguments(InputArguments):
    """The same for images, which take official wheels."""

    wheel_mirror: WheelMirror = ""


@dataclass(frozen=True, kw_only=True)
class OfflineInputArguments(InputArguments):
    """The same for what can be built without a network."""

    offline: Offline = False


@dataclass(frozen=True, kw_only=True)
class BuildInputArguments(OfflineInputArguments, ImageInputArguments):
    """What a build of images stands on."""


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Expand a verb's parameters of a dataclass's type into an option for each field, in the same order.

    Raises TypeError for two fields of one name.
    """
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    names = [parameter.name for parameter in parameters]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"{verb.__name__} has two parameters of one name: {', '.join(sorted(twice))}")

    def expanded(**given: Any) -> None:
        built = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **built)

    expanded.__name__, expanded.__doc__ = verb.__name__, verb.__doc__
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


def _parameters(group: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )
