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
    """Return what each build step of a derived image changed of the image that it was built on.

    `layers`: the entries (files, folders, links) of each layer, the lowest first. The `below`
    lowest ones are those of the image below. `steps`: the texts of the steps that made the layers
    above, one for each. A step that replaced and removed nothing of the image below is left out.
    """
    base = tree(layers[:below])
    changes = []
    before = dict(base)
    for step, layer in zip(steps, layers[below:], strict=True):
        # What a container sees with this layer on top: path -> entry.
        after = tree([layer], before)
        step_changes = _changes_of_step(step, base, before, after)
        if step_changes.replaced or step_changes.removed:
            changes.append(step_changes)
        before = after
    return changes


def _changes_of_step(step: str, base: Tree, before: Tree, after: Tree) -> StepChanges:
    """Return what a step changed of the files of `base`, the image below all steps.

    A path that the step wrote is compared with that of `base`, whatever steps between made of it:
    if it is as in `base` again, it is not replaced. What the step only added is not looked at.

    `base`, `before`, `after`: path -> file, folder or link, as a container sees it on the image
    below, without the step's layer, and with it. `step`: the step's text.
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
        # If the step's layer does not have a path, `after` has the very object of `before` there,
        # so identity tells what the step wrote.
        has_step_written_it = after[path] is not before[path]
        if has_step_written_it:
            difference = describe_difference(base_entry, after[path])
            if difference:
                replaced[f"/{path}"] = difference
    # A folder stands for all that was in it.
    topmost = [f"/{path}" for path in without_contents(removed)]
    return StepChanges(step=step, replaced=replaced, removed=topmost)


def describe_difference(before: LayerEntry, after: LayerEntry) -> str:
    """Return what is different at a path: `content and owner`, or `is a folder now`.

    `before` and `after` are the entries of one path in a lower and a higher layer. Empty if they
    differ in nothing but their times, as where an engine copied a file up unchanged.
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
