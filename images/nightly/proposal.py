"""An update proposal, made of a canary that is as good as the control: pins, lock, and a list of versions. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from images.config.yamlfile import YamlFile
from images.locking import lock_file
from images.nightly.canary import Locked
from images.nightly.results import Change
from images.planning.image import Image

PATCH = "update.patch"
LOG = "CHANGES.md"


def pins(matrix: str, file: YamlFile, image: Image, changes: Sequence[Change]) -> str:
    """The text of matrix.yaml with the image's own pins moved, each in the line where it stands.

    A pin that all stacks share (`common`) is written into the image's stack: the others keep theirs.
    """
    lines = matrix.splitlines(keepends=True)
    stack = ("stacks", str(image.name.torch))
    profiles = file.data.get("profiles", {})
    owners = [stack, *(("profiles", name, *stack) for name in profiles)] if image.profile else [stack]
    added = []
    for change in changes:
        if not (change.pinned and change.before and change.after):
            continue
        places = [(*owner, change.name) for owner in owners if (*owner, change.name) in file.lines]
        for place in places:
            number = file.lines[place] - 1
            written = rf"(\b{re.escape(change.name)}: *[\"']?){re.escape(change.before)}\b"
            lines[number] = re.sub(written, rf"\g<1>{change.after}", lines[number])
        if not places:
            added.append(f"    {change.name}: {_quoted(change.after)}\n")
    head = file.lines[stack]
    return "".join([*lines[:head], *added, *lines[head:]])


def _quoted(version: str) -> str:
    """A version of two parts would be read as a number by other readers of YAML."""
    return f'"{version}"' if re.fullmatch(r"\d+(\.\d+)?", version) else version


def patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What `git apply` takes: path -> text, before and after."""
    parts: list[str] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path, ""), after.get(path, "")
        source, target = f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null"
        parts += difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), fromfile=source, tofile=target
        )
    return "".join(parts)


def locks(canary: Locked) -> dict[str, str]:
    """Path below the project's root -> content of the new lock."""
    folder = f"locks/{canary.image.lock_name}"
    return {f"{folder}/{name}": content.decode() for name, content in lock_file.written(canary.lock).items()}


def log(image: str, validated: str, changes: Sequence[Change], before_merging: Sequence[str]) -> str:
    """CHANGES.md: what changed, from, to; and what else must be done before it can be merged."""
    rows = [f"| {one.name} | {one.before or '-'} | {one.after or '-'} | {_why(one)} |" for one in changes]
    table = ["| package | from | to | |", "|---|---|---|---|", *rows]
    todo = ["", "Before it is merged:", "", *(f"- {text}" for text in before_merging)] if before_merging else []
    head = [f"# Move {image} to the newest versions", "", validated, "", f"`git apply {PATCH}` makes the change.", ""]
    return "\n".join([*head, *table, *todo]) + "\n"


def _why(change: Change) -> str:
    return "pinned" if change.pinned else "dependency" if change.after else "no longer needed"
