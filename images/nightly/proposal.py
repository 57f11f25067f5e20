"""Update proposals: pins and lock of a canary that is as good as the control."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from images.comparison import tables
from images.comparison.differences import Comparison
from images.config import yamlfile
from images.config.matrix import Sources
from images.errors import command
from images.locking import lock_file
from images.nightly import results
from images.nightly.run import ImageResult
from images.planning.image import Image
from images.validation.rows import Change

PATCH = "update.patch"
LOG = "CHANGES.md"


def write(result: ImageResult, sources: Sources, folder: Path, *, has_wheelhouse: bool) -> str:
    """Write a proposal to update an image into a folder, and return the folder.

    The proposal is a patch, which moves matrix.yaml and the image's lock to the newest versions,
    and CHANGES.md. A nightly run has tried these versions (the canary). If they did worse than the
    current ones (the control), nothing is written, and the result is empty. `has_wheelhouse`: the
    image was built with wheels from a folder of the user (--wheelhouse).
    """
    if result.proposed is None or result.comparison is None:
        return ""
    image, root = result.proposed.image, sources.workspace.root

    # The changed files: path in the checkout -> text. A layer that is new has a new file.
    old_matrix = sources.workspace.matrix.read_text(encoding="utf-8")
    after = {"matrix.yaml": move_pins(old_matrix, image, result.canary.changes)}
    for name, content in lock_file.serialize(result.proposed.lock).items():
        after[f"locks/{image.lock_name}/{name}"] = content.decode()
    before = {}
    for path in after:
        if (root / path).is_file():
            before[path] = (root / path).read_text(encoding="utf-8")

    folder.mkdir(parents=True, exist_ok=True)
    (folder / PATCH).write_text(_patch(before, after))
    description = _describe_changes(result, result.comparison, has_wheelhouse=has_wheelhouse)
    (folder / LOG).write_text(description)
    return str(folder)


def _describe_changes(result: ImageResult, comparison: Comparison, *, has_wheelhouse: bool) -> str:
    """Return CHANGES.md, which describes a proposal to move an image to the newest versions.

    It has the steps before a merge, and the image as it is beside the one with these versions.
    `has_wheelhouse`: the image was built with wheels from a folder of the user (--wheelhouse).
    """
    image = result.image
    wheelhouse = ["--wheelhouse FOLDER"] if has_wheelhouse else []
    recording = command("reproduce", image, *wheelhouse, "--record")
    steps = (
        f"- `{command('plan')}` shows which images share the stack: whether the rules refuse one, "
        "or its lock is stale\n"
        f"- `{command('lock', image)}`, with the names of those images, renews locks, and reads "
        "the RECORDs of their new wheels\n"
        f"- `{recording}` builds it twice and records its layers; until then `publish` refuses\n"
        "  the image, as its origin is UNPROVEN\n"
    )
    return f"""# Move {image} to the newest versions

{results.summarize(result.canary)}, on {result.canary.date:%Y-%m-%d}, as the committed lock.

`git apply {PATCH}` makes the change. Before it is merged:

{steps}
{tables.markdown(comparison)}"""


def _patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the change of files (path -> text) as `git apply` reads it; empty if there is none.

    A file that is only in `after` is new. No file is removed.
    """
    patch = ""
    for path in sorted(after):
        old_lines = before.get(path, "").splitlines(keepends=True)
        new_lines = after[path].splitlines(keepends=True)
        # This is how `git apply` knows that a file is new.
        old_name = f"a/{path}" if old_lines else "/dev/null"
        difference = difflib.unified_diff(old_lines, new_lines, old_name, f"b/{path}")
        patch += "".join(difference)
    return patch


def move_pins(text: str, image: Image, changes: Sequence[Change]) -> str:
    """Return the text of matrix.yaml with new versions of the packages that it pins for an image.

    `text` is the file as it is, and `changes` has the old and new versions. A version is changed
    where it is written: under the image's torch (its stack), or under a profile. If it is written
    for all stacks (`common`), a line is added to this image's stack, so that others keep theirs.
    """
    file = yamlfile.parse("matrix.yaml", text)
    lines = text.splitlines(keepends=True)
    # The sections that may have a pin of the image, each as the keys that lead to it. A profile may
    # extend another one, so look into all of them.
    stack = ("stacks", str(image.name.torch))
    sections: list[tuple[str, ...]] = [stack]
    if image.name.profile:
        for profile in file.data.get("profiles", {}):
            sections.append(("profiles", profile, *stack))

    pins_to_add = []
    for change in changes:
        # Skip dependencies, which are not in the file, and packages that came or went.
        if not (change.pinned and change.before and change.after):
            continue
        is_in_a_section = False
        for section in sections:
            # `file.lines` has the number of each key's line, counted from 1.
            line_number = file.lines.get((*section, change.name))
            if line_number is not None:
                is_in_a_section = True
                lines[line_number - 1] = _move_pin(lines[line_number - 1], change)
        if not is_in_a_section:
            pins_to_add.append(f"    {change.name}: {_as_yaml(change.after)}\n")

    # Insert new pins below the line with the stack's key. Its number counts from 1, so as an index
    # it is that of the line after it.
    first_pin = file.lines[stack]
    return "".join([*lines[:first_pin], *pins_to_add, *lines[first_pin:]])


def _move_pin(line: str, change: Change) -> str:
    """Return a line of matrix.yaml with a package's version replaced.

    The line stays as it is if it has another version of the package than `change.before`.
    """
    pin = rf"(\b{re.escape(change.name)}: *[\"']?){re.escape(change.before)}\b"
    return re.sub(pin, rf"\g<1>{change.after}", line)


def _as_yaml(version: str) -> str:
    """Return a version as a YAML string: one such as `2.5` would be read as a number."""
    looks_like_a_number = re.fullmatch(r"\d+(\.\d+)?", version)
    return f'"{version}"' if looks_like_a_number else version
