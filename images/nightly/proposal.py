"""Update proposals: pins and lock of a canary that is as good as the control."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from images.config import yamlfile
from images.config.matrix import Sources
from images.errors import command
from images.locking import lock_file
from images.nightly import results
from images.nightly.results import Change
from images.nightly.run import ImageResult
from images.planning.image import Image

PATCH = "update.patch"
LOG = "CHANGES.md"


def write(result: ImageResult, sources: Sources, folder: Path) -> str:
    """Write the change that moves an image to its canary. Returns the folder."""
    if result.proposed is None:
        return ""
    image, root = result.proposed.image, sources.workspace.root
    matrix_text = pins(
        sources.workspace.matrix.read_text(encoding="utf-8"), image, result.canary.changes
    )
    after = {"matrix.yaml": matrix_text}
    for name, content in lock_file.serialize(result.proposed.lock).items():
        after[f"locks/{image.lock_name}/{name}"] = content.decode()
    before = {
        path: (root / path).read_text(encoding="utf-8") for path in after if (root / path).is_file()
    }

    folder.mkdir(parents=True, exist_ok=True)
    (folder / PATCH).write_text(_patch(before, after))
    (folder / LOG).write_text(_log(result))
    return str(folder)


def _log(result: ImageResult) -> str:
    """Return CHANGES.md: each package, from, to, and what to do before the change is merged."""
    image = result.image
    rows = ""
    for change in result.canary.changes:
        why = "dependency" if change.after else "no longer needed"
        if change.pinned:
            why = "pinned"
        rows += f"| {change.name} | {change.before or '-'} | {change.after or '-'} | {why} |\n"
    return f"""# Move {image} to the newest versions

{results.told(result.canary)}, on {result.canary.date:%Y-%m-%d}, as the committed lock.

`git apply {PATCH}` makes the change.

| package | from | to | |
|---|---|---|---|
{rows}
Before it is merged:

- `{command("plan")}` shows which images share the stack: whether the rules refuse one, or its lock is stale
- `{command("lock", image)}`, with the names of those images, renews locks, and reads the RECORDs of their new wheels
- `python -m tools.reproduce {image} --record` builds it twice and records its layers; until then `publish` refuses the
  image, as its origin is UNPROVEN
"""


def _patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the change of files (path -> text) as `git apply` reads it."""
    patch = ""
    for path in sorted(after):
        old = before.get(path, "").splitlines(keepends=True)
        new = after[path].splitlines(keepends=True)
        patch += "".join(
            difflib.unified_diff(old, new, f"a/{path}" if old else "/dev/null", f"b/{path}")
        )
    return patch


def pins(text: str, image: Image, changes: Sequence[Change]) -> str:
    """The text of matrix.yaml with the image's own pins moved, each in the line where it stands.

    A pin that all stacks share (`common`) is written into the image's stack: the others keep theirs.
    """
    lines, file = text.splitlines(keepends=True), yamlfile.parse("matrix.yaml", text)
    stack = ("stacks", str(image.name.torch))
    profiles = file.data.get("profiles", {})
    owners = (
        [stack, *(("profiles", name, *stack) for name in profiles)]
        if image.name.profile
        else [stack]
    )
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
            # A version of two parts would be read as a number by other readers of YAML.
            version = (
                f'"{change.after}"' if re.fullmatch(r"\d+(\.\d+)?", change.after) else change.after
            )
            added.append(f"    {change.name}: {version}\n")
    head = file.lines[stack]
    return "".join([*lines[:head], *added, *lines[head:]])
