"""Update proposals: pins and lock of a canary that is as good as the control, and newer Debian packages."""

import difflib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from images.config import matrix, yamlfile
from images.config.matrix import Sources
from images.errors import command
from images.locking import debian, lock_file
from images.locking.debian import DebianLock
from images.nightly import results
from images.nightly.results import Change
from images.nightly.run import ImageResult
from images.planning import plan
from images.planning.image import Base, Image

PATCH = "update.patch"
LOG = "CHANGES.md"
_TRACKER = "https://security-tracker.debian.org/tracker/source-package/"


def write(found: ImageResult, sources: Sources, folder: Path) -> str:
    """Write the change that moves an image to its canary. Returns the folder."""
    if found.proposed is None:
        return ""
    root = sources.workspace.root
    text = sources.workspace.matrix.read_text(encoding="utf-8")
    moved = pins(text, found.proposed.image, found.canary.changes)
    lock = lock_file.written(found.proposed.lock)
    folder_of = f"locks/{found.proposed.image.lock_name}"
    after = {"matrix.yaml": moved, **{f"{folder_of}/{name}": content.decode() for name, content in lock.items()}}
    before = {path: (root / path).read_text(encoding="utf-8") for path in after if (root / path).is_file()}
    validated = f"{results.told(found.canary)}, on {found.canary.date:%Y-%m-%d}, as the committed lock."
    table = ["| package | from | to | |", "|---|---|---|---|"]
    for one in found.canary.changes:
        why = "pinned" if one.pinned else "dependency" if one.after else "no longer needed"
        table.append(f"| {one.name} | {one.before or '-'} | {one.after or '-'} | {why} |")
    head = [f"# Move {found.image} to the newest versions", "", validated, ""]
    head += [f"`git apply {PATCH}` makes the change.", ""]
    todo = ["", "Before it is merged:", "", *(f"- {one}" for one in _before_merging(moved, found, sources))]
    return _put(folder, before, after, [*head, *table, *todo])


def debian_packages(base: Base, old: DebianLock, new: DebianLock, images: Sequence[str], folder: Path) -> str:
    """Write the change that moves the Debian packages of a base. Returns the folder; empty: nothing moved."""
    moved = debian.moves(old, new)
    if not moved:
        return ""
    table = ["| package | from | to | |", "|---|---|---|---|"]
    for name, (was, now) in moved.items():
        # The security archive has nothing but what an advisory is about. `pool/updates/main/o/openssl/libssl3_...`
        archive, _, path = new.paths.get(name, "").partition("/")
        source = path.split("/")[-2:-1]
        about = (
            f"security: <{_TRACKER}{source[0]}>" if archive == "debian-security" else "" if now else "no longer needed"
        )
        table.append(f"| {name} | {was or '-'} | {now or '-'} | {about} |")
    place = f"locks/{debian.place(base)}"
    head = [
        f"# Move the Debian packages of {old.suite} ({old.architecture})",
        "",
        f"From those of {old.day} to those of {new.day}. Nothing was built with them yet.",
        "",
        f"`git apply {PATCH}` makes the change.",
        "",
    ]
    again = "Recorded runs are about other layers than those of these images then: their GPU tiers have to run again."
    record = "`python -m tools.reproduce NAME --record` records the new layers of each."
    todo = ["", f"Before it is merged: `{command('build', *images)}`. {record} {again}"]
    before, after = ({place: debian.written(lock).decode()} for lock in (old, new))
    return _put(folder, before, after, [*head, *table, *todo])


def _put(folder: Path, before: Mapping[str, str], after: Mapping[str, str], log: Sequence[str]) -> str:
    """Write a patch and its log. Returns the folder."""
    parts: list[str] = []
    for path in sorted(after):
        old, new = (text.get(path, "").splitlines(keepends=True) for text in (before, after))
        parts += difflib.unified_diff(old, new, fromfile=f"a/{path}" if old else "/dev/null", tofile=f"b/{path}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PATCH).write_text("".join(parts))
    (folder / LOG).write_text("\n".join(log) + "\n")
    return str(folder)


def _before_merging(text: str, found: ImageResult, sources: Sources) -> list[str]:
    """Images that the rules then refuse, locks that are then stale, and locks of whose files nothing is known."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "matrix.yaml")
        file.write_text(text)
        planned = plan.plan(matrix.load(matrix=file))
    accepted = {one.name for one in plan.plan(sources) if one.image}
    refused = [one for one in planned if not one.image and one.name in accepted]
    images = [one.image for one in planned if one.image and one.name != found.image]
    states = lock_file.states(images, sources.workspace.locks)
    stale = [name for name, state in states.items() if state is lock_file.Status.STALE]
    todo = [f"{one.name} would be refused: {'; '.join(one.reasons)}" for one in refused]
    if stale:
        todo.append(f"validate those that share the stack, too: {' '.join(stale)}")
    renew = f"`{command('lock', found.image, *stale)}` renews locks, and reads the RECORDs of their new wheels"
    record = f"`python -m tools.reproduce {found.image} --record` builds it twice and records its layers"
    return [*todo, renew, f"{record}; until then `publish` refuses the image, as its origin is UNPROVEN"]


def pins(text: str, image: Image, changes: Sequence[Change]) -> str:
    """The text of matrix.yaml with the image's own pins moved, each in the line where it stands.

    A pin that all stacks share (`common`) is written into the image's stack: the others keep theirs.
    """
    lines, file = text.splitlines(keepends=True), yamlfile.parse("matrix.yaml", text)
    stack = ("stacks", str(image.name.torch))
    profiles = file.data.get("profiles", {})
    owners = [stack, *(("profiles", name, *stack) for name in profiles)] if image.name.profile else [stack]
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
            version = f'"{change.after}"' if re.fullmatch(r"\d+(\.\d+)?", change.after) else change.after
            added.append(f"    {change.name}: {version}\n")
    head = file.lines[stack]
    return "".join([*lines[:head], *added, *lines[head:]])
