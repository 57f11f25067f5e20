"""Finds what a derived image changes of the files of the image that it was built on. Pure.

Only the layers are read: their tars name each file that a step wrote, and each that it removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from images.engine.layer_tree import LayerEntry, Tree, tree


@dataclass(frozen=True, kw_only=True)
class StepChanges:
    """The paths of the image below that one build step replaced or removed."""

    step: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Path -> what is different: `content`, `mode`, `owner`, `target`, or what it is now."""
    removed: Sequence[str] = ()
    """Paths. A folder stands for all that was in it."""


def changes_by_step(
    layers: Sequence[Sequence[LayerEntry]], below: int, steps: Sequence[str]
) -> list[StepChanges]:
    """Return what each step of a derived image changed of the image below.

    The `below` lowest layers are that image's. `steps` made the layers above, the lowest first. A
    step that only added files is left out.
    """
    base = tree(layers[:below])
    changes = []
    before = dict(base)
    for step, layer in zip(steps, layers[below:], strict=True):
        after = tree([layer], before)
        step_changes = _changes_of_step(step, base, before, after)
        if step_changes.replaced or step_changes.removed:
            changes.append(step_changes)
        before = after
    return changes


def _changes_of_step(step: str, base: Tree, before: Tree, after: Tree) -> StepChanges:
    """Return what a step changed of the files of `base`, the image below all steps.

    A path that the step wrote is compared with that of `base`, whatever steps between made of it:
    if it is as in `base` again, it is not replaced.

    `before` and `after`: what a container sees without and with the layer of the step.
    """
    replaced = {}
    removed = []
    for path, base_entry in base.items():
        # A step below removed it, so it is in the changes of that step.
        if path not in before:
            continue
        if path not in after:
            removed.append(path)
            continue
        # `tree` takes over the very object of each entry that the layer does not have.
        has_step_written_it = after[path] is not before[path]
        if has_step_written_it:
            difference = describe_difference(base_entry, after[path])
            if difference:
                replaced[f"/{path}"] = difference
    topmost = [f"/{path}" for path in without_contents(removed)]
    return StepChanges(step=step, replaced=replaced, removed=topmost)


def describe_difference(before: LayerEntry, after: LayerEntry) -> str:
    """Return what is different at a path: `content and owner`, or `is a folder now`.

    Empty if nothing but the time is, as where an engine copied a file up unchanged.
    """
    # A hard link is a file, too: it only has several names.
    are_both_files = {before.kind, after.kind} <= {"file", "hard link"}
    if before.kind != after.kind and not are_both_files:
        return f"is a {after.kind} now"
    differences = []
    if before.content != after.content:
        differences.append("content")
    if before.kind == "link" and before.link != after.link:
        differences.append("target")
    # The mode of a link means nothing.
    if before.mode != after.mode and after.kind != "link":
        differences.append("mode")
    if before.owner != after.owner:
        differences.append("owner")
    return " and ".join(differences)


def without_contents(paths: Sequence[str]) -> list[str]:
    """Return these paths in order, without those that lie in a folder among them."""
    all_paths = set(paths)
    return [path for path in sorted(paths) if path.rpartition("/")[0] not in all_paths]
