"""Compare the layers of two builds, and name the files that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from images.engine.layer_tree import LayerEntry
from images.reproduction.builds import Files, LayerBuilt

_MOST_NAMED = 5
"""Files of a layer that are named, before the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A layer that is not the same in two builds."""

    layer: str
    first: str
    second: str
    """Diff IDs; empty for a build without such a layer."""
    files: Sequence[str] = ()
    """The first files that differ, and how."""


def compare(first: Sequence[LayerBuilt], second: Sequence[LayerBuilt]) -> list[Difference]:
    """Return a Difference for each layer that two builds of an image do not have in common.

    `first` and `second` are the layers of the two builds. Layers with the same name are compared. A
    Difference has the layer's digest in each build, empty if that build lacks the layer; which
    files differ is not known yet.
    """
    # Name of a layer -> the layer.
    rows = {row.layer: row for row in first}
    other_rows = {row.layer: row for row in second}
    differences = []
    for layer in {**rows, **other_rows}:
        row, other = rows.get(layer), other_rows.get(layer)
        if row is None or other is None or not is_same_layer(row, other):
            first_id = row.diff_id if row else ""
            second_id = other.diff_id if other else ""
            differences.append(Difference(layer=layer, first=first_id, second=second_id))
    return differences


def is_same_layer(first: LayerBuilt, second: LayerBuilt) -> bool:
    """Return whether two builds of a layer gave the same files, whichever stores wrote them."""
    has_same_change = bool(first.change) and first.change == second.change
    return first.diff_id == second.diff_id or has_same_change


def describe_files(first: Sequence[LayerEntry], second: Sequence[LayerEntry]) -> list[str]:
    """Return sentences on how two listings of a layer differ.

    A listing has an entry (path, mode, owner, ...) for each file of the layer. There is a sentence
    for each of the first files that differ, such as `/etc/x: mode 420 and 493`, and one with the
    number of the others.
    """
    first_by_path = {entry.path: entry for entry in first}
    second_by_path = {entry.path: entry for entry in second}
    paths = sorted({**first_by_path, **second_by_path})
    differing = [path for path in paths if first_by_path.get(path) != second_by_path.get(path)]
    # The caller knows that the layers differ. If their entries don't, the tar is another.
    if not differing:
        is_same_order = list(first_by_path) == list(second_by_path)
        return ["in how the tar is written" if is_same_order else "the same files in another order"]

    sentences = []
    for path in differing[:_MOST_NAMED]:
        before, after = first_by_path.get(path), second_by_path.get(path)
        if before is None or after is None:
            sentences.append(f"/{path} is only in the {'second' if before is None else 'first'}")
            continue
        fields = []
        for field, old, new in zip(LayerEntry._fields, before, after, strict=True):
            if old != new:
                fields.append(f"{field} {old} and {new}")
        sentences.append(f"/{path}: {', '.join(fields)}")
    more = len(differing) - len(sentences)
    if more:
        sentences.append(f"{more} more files differ")
    return sentences


def with_files(differences: Sequence[Difference], first: Files, second: Files) -> list[Difference]:
    """Return the same differences with sentences on the files of each layer."""
    explained = []
    for row in differences:
        entries, other_entries = first.get(row.layer, ()), second.get(row.layer, ())
        sentences = ["its files can't be read here"]
        if entries and other_entries:
            sentences = describe_files(entries, other_entries)
        explained.append(replace(row, files=tuple(sentences)))
    return explained
