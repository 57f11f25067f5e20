"""Update proposals: pins and lock of a canary that is as good as the control, and newer Debian packages."""

import difflib
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
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


def write(result: ImageResult, sources: Sources, folder: Path) -> str:
    """Write the change that moves an image to its canary. Returns the folder."""
    if result.proposed is None:
        return ""
    image, root = result.proposed.image, sources.workspace.root
    matrix_text = pins(sources.workspace.matrix.read_text(encoding="utf-8"), image, result.canary.changes)
    after = {"matrix.yaml": matrix_text}
    for name, content in lock_file.written(result.proposed.lock).items():
        after[f"locks/{image.lock_name}/{name}"] = content.decode()
    before = {path: (root / path).read_text(encoding="utf-8") for path in after if (root / path).is_file()}

    rows = []
    for change in result.canary.changes:
        why = "dependency" if change.after else "no longer needed"
        rows.append((change.name, change.before, change.after, "pinned" if change.pinned else why))
    log = _log(
        f"Move {result.image} to the newest versions",
        f"{results.told(result.canary)}, on {result.canary.date:%Y-%m-%d}, as the committed lock.",
        rows,
    )
    log += "\nBefore it is merged:\n\n"
    log += "".join(f"- {step}\n" for step in _before_merging(matrix_text, result, sources))
    return _put(folder, before, after, log)


def debian_packages(base: Base, old: DebianLock, new: DebianLock, images: Sequence[str], folder: Path) -> str:
    """Write the change that moves the Debian packages of a base. Returns the folder; empty: nothing moved."""
    rows = []
    for name, (version_before, version_after) in debian.moves(old, new).items():
        # The security archive has nothing but what an advisory is about. `pool/updates/main/o/openssl/libssl3_...`
        archive, _, path = new.paths.get(name, "").partition("/")
        about = "" if version_after else "no longer needed"
        if archive == "debian-security":
            about = f"security: <{_TRACKER}{path.split('/')[-2]}>"
        rows.append((name, version_before, version_after, about))
    if not rows:
        return ""

    log = _log(
        f"Move the Debian packages of {old.suite} ({old.architecture})",
        f"From those of {old.day} to those of {new.day}. Nothing was built with them yet.",
        rows,
    )
    log += f"""
Before it is merged: `{command("build", *images)}`. `python -m tools.reproduce NAME --record` records the new layers of
each. Recorded runs are about other layers than those of these images then: their GPU tiers have to run again.
"""
    place = f"locks/{debian.place(base)}"
    return _put(folder, {place: debian.written(old).decode()}, {place: debian.written(new).decode()}, log)


def _log(title: str, text: str, rows: Iterable[tuple[str, str, str, str]]) -> str:
    """Return the beginning of CHANGES.md. Rows: package, versions before and after, why."""
    log = f"# {title}\n\n{text}\n\n`git apply {PATCH}` makes the change.\n\n"
    log += "| package | from | to | |\n|---|---|---|---|\n"
    for name, before, after, why in rows:
        log += f"| {name} | {before or '-'} | {after or '-'} | {why} |\n"
    return log


def _put(folder: Path, before: Mapping[str, str], after: Mapping[str, str], log: str) -> str:
    """Write a patch and its log. Returns the folder."""
    patch = ""
    for path in sorted(after):
        old = before.get(path, "").splitlines(keepends=True)
        new = after[path].splitlines(keepends=True)
        patch += "".join(difflib.unified_diff(old, new, f"a/{path}" if old else "/dev/null", f"b/{path}"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PATCH).write_text(patch)
    (folder / LOG).write_text(log)
    return str(folder)


def _before_merging(text: str, result: ImageResult, sources: Sources) -> list[str]:
    """Return what to do: images that the rules then refuse, locks that are then stale, and what is to be recorded."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "matrix.yaml")
        file.write_text(text)
        after = plan.plan(matrix.load(matrix=file))
    accepted = {row.name for row in plan.plan(sources) if row.image}
    steps = []
    for row in after:
        if not row.image and row.name in accepted:
            steps.append(f"{row.name} would be refused: {'; '.join(row.reasons)}")

    others = [row.image for row in after if row.image and row.name != result.image]
    states = lock_file.states(others, sources.workspace.locks)
    stale = [name for name, state in states.items() if state is lock_file.Status.STALE]
    if stale:
        steps.append(f"validate those that share the stack, too: {' '.join(stale)}")

    renew = f"`{command('lock', result.image, *stale)}` renews locks, and reads the RECORDs of their new wheels"
    record = f"`python -m tools.reproduce {result.image} --record` builds it twice and records its layers"
    return [*steps, renew, f"{record}; until then `publish` refuses the image, as its origin is UNPROVEN"]


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
