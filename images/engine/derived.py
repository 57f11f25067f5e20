"""What the layers of a derived image do to the files of the image below it. Pure.

Only the layers themselves are asked: their tars name each file that a step wrote, and each that it
removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from images.engine.exported import LayerEntry, tree


@dataclass(frozen=True, kw_only=True)
class StepChanges:
    """The paths of the image below that one build step replaced or removed."""

    step: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Path -> what of it is another: `content`, `mode`, `owner`, `target`, or the kind that it
    has become."""
    removed: Sequence[str] = ()
    """A folder stands for all that was in it."""


def changes_by_step(
    layers: Sequence[Sequence[LayerEntry]], below: int, steps: Sequence[str]
) -> list[StepChanges]:
    """Return what each step above changed of the `below` lowest layers; nothing of steps that only
    added files.

    `steps`: those that made the layers above, the lowest first.
    """
    parent = tree(layers[:below])
    changes = []
    before = dict(parent)
    for step, layer in zip(steps, layers[below:], strict=True):
        after = tree([layer], before)
        replaced = {}
        removed = []
        for path, entry in parent.items():
            if path not in before:
                continue  # a step below has removed it, and was named for that
            if path not in after:
                removed.append(path)
            elif after[path] is not before[path]:
                difference = describe_difference(entry, after[path])
                if difference:
                    replaced[f"/{path}"] = difference
        if replaced or removed:
            topmost = [f"/{path}" for path in without_contents(removed)]
            changes.append(StepChanges(step=step, replaced=replaced, removed=topmost))
        before = after
    return changes


def describe_difference(before: LayerEntry, after: LayerEntry) -> str:
    """Return what of a path is another; empty where an engine copied it up as it was, with
    another time, say.
    """
    is_file = {before.kind, after.kind} <= {"file", "hard link"}
    if before.kind != after.kind and not is_file:
        return f"is a {after.kind} now"
    differences = []
    if before.content != after.content:
        differences.append("content")
    if before.kind == "link" and before.link != after.link:
        differences.append("target")
    if before.mode != after.mode and after.kind != "link":
        differences.append("mode")
    if before.owner != after.owner:
        differences.append("owner")
    return " and ".join(differences)


def without_contents(paths: Sequence[str]) -> list[str]:
    """Return these paths without those that lie in a folder among them."""
    all_paths = set(paths)
    return [path for path in sorted(paths) if path.rpartition("/")[0] not in all_paths]
