"""Lists what layers hold, and works out what a container sees of them. Pure.

Whiteouts, which remove files of lower layers, are explained in the OCI image specification,
layer.md.
"""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

_WHITEOUT = ".wh."
"""A file `.wh.NAME` removes NAME of the layers below."""
_OPAQUE = ".wh..wh..opq"
"""A file of this name removes all that the layers below have in its folder."""
_XATTR = "SCHILY.xattr."
"""How the keys of extended attributes begin in PAX records, which all engines write so."""
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}


class LayerEntry(NamedTuple):
    """A file, folder or link in a layer. Paths have no slash at either end."""

    path: str
    kind: str
    """`file`, `folder`, `link`, `hard link`, `whiteout` or `other`."""
    mode: int
    owner: tuple[int, int]
    time: int
    """Seconds since 1970."""
    link: str
    """The target of a link as it is written, or the path of a hard link's file; else empty."""
    content: str
    """A text that is equal for files of equal content, among layers of one engine's store."""
    attributes: str = ""
    """Extended attributes, such as capabilities, and the numbers of a device; as JSON."""


Tree = Mapping[str, LayerEntry]
"""Path -> what a container sees there."""


def parse_headers(
    headers: Sequence[bytes], contents: Sequence[str], end: bytes
) -> list[LayerEntry]:
    """Return the entries of a layer from the headers of its tar.

    An entry is a file, folder or link. `headers` has, for each one, all bytes of the tar up to its
    content. `contents` has a text for each header, which is equal for files of equal content. `end`
    is what follows the last file in the tar. Raises tarfile.ReadError for damaged headers.
    """
    # A tar without the contents of its files: each header follows the one before it. A block of
    # zeros ends it in any case, because `end` may be empty.
    stream = io.BytesIO(b"".join([*headers, end, bytes(tarfile.BLOCKSIZE)]))
    entries = []
    with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as tar:
        stream.seek(0)  # opening has read the first header already
        for content in contents:
            entries.append(entry_of(tarfile.TarInfo.fromtarfile(tar), content))
    return entries


def entry_of(member: tarfile.TarInfo, content: str) -> LayerEntry:
    """Return the entry (a file, folder or link) for a member of a layer's tar.

    A whiteout is an empty file whose name says that a layer removes something. It keeps its own
    path, such as `etc/.wh.passwd`: `tree` does what it stands for.

    `content` is a text that is equal for files of equal content; only a file's entry gets it.
    """
    path = normal_path(member.name)
    # Tar has several types for an ordinary file, and isreg() knows all of them.
    kind = "file" if member.isreg() else _KINDS.get(member.type, "other")
    # A layer can't hold an ordinary file of such a name: it always means a deletion.
    if kind == "file" and path.rpartition("/")[2].startswith(_WHITEOUT):
        kind = "whiteout"

    link = ""
    if kind == "link":
        link = member.linkname
    elif kind == "hard link":
        # The tar names the file by the path of its member.
        link = normal_path(member.linkname)
    return LayerEntry(
        path=path,
        kind=kind,
        # Docker 20.10 writes the kind of a file into its mode, too.
        mode=member.mode & 0o7777,
        owner=(member.uid, member.gid),
        time=int(member.mtime),
        link=link,
        content=content if kind == "file" else "",
        attributes=_attributes(member),
    )


def _attributes(member: tarfile.TarInfo) -> str:
    """Return a tar member's extended attributes as JSON; empty if it has none.

    A program's capabilities, for example, are such an attribute. The numbers of a device are added
    as if they were one: `{"device": "1:3"}`.
    """
    attributes: dict[str, str] = {}
    for key, value in sorted(member.pax_headers.items()):
        # `SCHILY.xattr.security.capability`, for example.
        if key.startswith(_XATTR):
            attributes[key.removeprefix(_XATTR)] = value
    # tarfile counts a named pipe (FIFO) as a device, but it has no numbers.
    if member.isdev() and not member.isfifo():
        attributes["device"] = f"{member.devmajor}:{member.devminor}"
    return json.dumps(attributes) if attributes else ""


def normal_path(name: str) -> str:
    """Return a path of a tar in its normal form, without `/` or `./` at the front."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def tree(
    layers: Iterable[Sequence[LayerEntry]], below: Tree | None = None
) -> dict[str, LayerEntry]:
    """Return the files and folders that a container sees when these layers lie on each other.

    The result maps a path to its entry. `layers` has the lowest layer first; `below` is the result
    for the layers under them, and is not changed. A whiteout, an entry by which a layer removes a
    path, is applied, and is not in the result. A hard link is there as the file that it names.
    """
    visible = dict(below or {})
    for layer in layers:
        # What this layer brings. It becomes visible only after the whole layer was read, because a
        # whiteout removes what is in the layers below, and nothing of its own layer.
        added: dict[str, LayerEntry] = {}
        for entry in layer:
            folder, _, name = entry.path.rpartition("/")
            # A folder with this file hides all that lower layers have in it.
            if name == _OPAQUE:
                _remove_inside(visible, folder)
            elif entry.kind == "whiteout":
                removed_name = name.removeprefix(_WHITEOUT)
                _remove(visible, f"{folder}/{removed_name}".lstrip("/"))
            else:
                # If a folder is replaced by something else, all that was in it is gone as well.
                replaced = visible.get(entry.path)
                if replaced and replaced.kind == "folder" and entry.kind != "folder":
                    _remove(visible, entry.path)
                # The file of a hard link is in the same layer, and comes first. If it is not
                # there, the link's own entry stays.
                file = entry
                if entry.kind == "hard link":
                    file = added.get(entry.link, entry)
                added[entry.path] = file._replace(path=entry.path)
        visible |= added
    return visible


def _remove(entries_by_path: dict[str, LayerEntry], path: str) -> None:
    """Remove the entry at a path and, if it is a folder or not known, all entries below it."""
    entry = entries_by_path.pop(path, None)
    if entry is None or entry.kind == "folder":
        _remove_inside(entries_by_path, path)


def _remove_inside(entries_by_path: dict[str, LayerEntry], folder: str) -> None:
    """Remove all entries below a folder, but not the folder. Empty: the root of the image."""
    beginning = f"{folder}/" if folder else ""
    for path in list(entries_by_path):
        is_inside = path.startswith(beginning) and path != folder
        if is_inside:
            del entries_by_path[path]


class WastedFile(NamedTuple):
    """A file of a layer that travels for nothing, because of an upper layer."""

    layer: int
    """The number of the layer that has it; 0 is the lowest."""
    path: str
    by: int
    """The number of the upper layer."""
    how: Literal["copied", "removed"]
    """`copied`: the upper layer has it again with the same content, as after `chown -R`."""


def find_wasted(layers: Sequence[Sequence[LayerEntry]]) -> Iterator[WastedFile]:
    """Yield each file that an upper layer removes, or has again with the same content.

    `layers` has the entries (files, folders, links) of each layer, the lowest first. The further
    names of a file (hard links) do not count, as they take no room. A file that is replaced by
    other content does not count either: a newer release of a package, say.
    """
    # What a container sees of the layers so far: path -> entry, and path -> number of its layer.
    visible: dict[str, LayerEntry] = {}
    layer_of: dict[str, int] = {}
    # The files that take room: number of their layer, and path.
    files: set[tuple[int, str]] = set()
    for number, layer in enumerate(layers):
        after = tree([layer], visible)
        for path, before in visible.items():
            now = after.get(path)
            # `tree` keeps the entries of lower layers that this layer does not touch.
            is_untouched = now is before
            takes_room = (layer_of[path], path) in files
            if is_untouched or not takes_room:
                continue
            if now is None or now.kind != before.kind:
                yield WastedFile(layer_of[path], path, number, "removed")
            elif now.content == before.content:
                yield WastedFile(layer_of[path], path, number, "copied")

        # Remember what this layer has brought.
        for entry in layer:
            if entry.kind == "file":
                files.add((number, entry.path))
        for path, entry in after.items():
            is_untouched = visible.get(path) is entry
            if not is_untouched:
                layer_of[path] = number
        visible = after


def find_hidden(layers: Sequence[Sequence[LayerEntry]]) -> Iterator[tuple[int, str]]:
    """Yield each file, by its layer's number and its path, that an upper layer replaces or removes.

    A file that is replaced by one of equal content does not count. Layer 0 is the lowest. `layers`
    has the entries (files, folders, links) of each layer.
    """
    # What a container sees: path -> entry. A hard link has the content of its file there.
    visible = tree(layers)
    for number, layer in enumerate(layers):
        for entry in layer:
            if entry.kind != "file":
                continue
            final = visible.get(entry.path)
            if final is None or final.content != entry.content:
                yield number, entry.path
