"""What a release on the package index requires, as a row for facts.yaml: `python -m images facts NAME==VERSION`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.errors import Problem, UserError
from images.locking import uv
from images.locking.uv import Runner


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What one release says of itself."""

    name: str
    version: str
    form: str
    python: str
    requires: tuple[str, ...]


def read(requirement: str, python: str, run: Runner = uv.run) -> Metadata:
    """Install one release alone into a scratch folder and read its METADATA.

    A release without a wheel is built, which runs its code on this machine. Raises UserError: not `NAME==VERSION`,
    not on the index, can't be built.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.!]+", requirement):
        raise UserError(Problem(where=requirement, cause="is not NAME==VERSION", then="name one exact version"))
    with tempfile.TemporaryDirectory() as scratch:
        form = "wheel"
        answer = _install(requirement, python, scratch, ["--only-binary", ":all:"], run)
        if answer.code and "no usable wheels" in answer.errors:
            form = "source"
            answer = _install(requirement, python, scratch, [], run)
        if answer.code:
            cause = " ".join(answer.errors.split()) or "uv failed"
            raise UserError(Problem(where=requirement, cause=cause, then="fix the name or the version"), code=1)
        (file,) = Path(scratch).glob("*.dist-info/METADATA")
        return _parse(file.read_text(encoding="utf-8"), form)


def as_row(found: Metadata, source: str) -> str:
    """The row as YAML, to be pasted under `packages`."""
    row = {"form": found.form, "python": found.python, "requires": list(found.requires), "source": source}
    kept = {key: value for key, value in row.items() if value and (key, value) != ("form", "wheel")}
    text = yaml.safe_dump({found.name: {found.version: kept}}, sort_keys=False, width=130, allow_unicode=True)
    return "".join(f"  {line}\n" for line in text.splitlines())


def _install(requirement: str, python: str, folder: str, options: Sequence[str], run: Runner) -> uv.Answer:
    arguments = ["pip", "install", "--quiet", "--no-config", "--no-deps", "--no-progress", "--color", "never"]
    arguments += ["--python-version", python, "--target", folder, *options, requirement]
    return run(arguments)


def _parse(text: str, form: str) -> Metadata:
    headers = HeaderParser().parsestr(text)
    stated = [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
    # Requirements of an extra apply only where the extra is asked for.
    own = [requirement for requirement in stated if "extra" not in str(requirement.marker or "")]
    return Metadata(
        name=canonicalize_name(str(headers["Name"])),
        version=str(headers["Version"]),
        form=form,
        python=str(headers["Requires-Python"] or ""),
        requires=tuple(sorted(map(str, own))),
    )
