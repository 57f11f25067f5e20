"""A layer's tar, taken apart as it arrives: raw bytes, entries, and the payloads of files.

Entries hold what Go's archive/tar makes of a header, for podman reads the same headers with it and compares
(github.com/containers/storage, pkg/chunked/compression_linux.go, ensureTOCMatchesTarSplit). So a header of which the
two could differ is refused: what BuildKit, Docker and GNU tar write is read.
"""

from __future__ import annotations

import base64
import functools
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

_BLOCK = 512
_USTAR, _GNU = b"ustar\x0000", b"ustar  \x00"
"""Magic and version (POSIX.1-1988; GNU tar)."""
_AFTER_USTAR, _STAR = slice(345, 512), slice(508, 512)
"""Where GNU's old format keeps more times and sparse maps, and what star ends its headers with."""
_SECOND = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {
    tarfile.REGTYPE: "reg",
    tarfile.LNKTYPE: "hardlink",
    tarfile.SYMTYPE: "symlink",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.DIRTYPE: "dir",
    tarfile.FIFOTYPE: "fifo",
}
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LARGEST_EXTENSION = 1 << 20
"""Bytes that Go reads at most (archive/tar, maxSpecialFileSize)."""
_XATTR = "SCHILY.xattr."
_SPARSE = "GNU.sparse."


class UnknownTarError(Exception):
    """A tar that can't be described: one that is damaged, or of a form that is not read here."""


@dataclass(frozen=True, kw_only=True)
class TarEntry:
    """A file of a layer. `kind` is zstd:chunked's word; times are RFC 3339, or empty; xattrs are base64."""

    kind: str
    name: str
    linkname: str = ""
    mode: int = 0
    size: int = 0
    uid: int = 0
    gid: int = 0
    modified: str = ""
    accessed: str = ""
    changed: str = ""
    device: tuple[int, int] = (0, 0)
    """Major and minor."""
    xattrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """Bytes of the tar that are no file's: headers, which come before their entry, and padding."""

    content: bytes


@dataclass(frozen=True)
class Payload:
    """Bytes of the entry that came last."""

    content: bytes


class TarScanner:
    """Takes a tar in pieces of any size, gives what they hold. All `content` in turn is the tar again."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = _BLOCK
        self._in_payload = False
        self._then: Callable[[bytes], TarEntry | None] = self._on_header
        self._extensions: dict[bytes, bytes] = {}
        self._names: set[str] = set()

    def feed(self, content: bytes) -> Iterator[Raw | Payload | TarEntry]:
        """Raises UnknownTarError."""
        view = memoryview(content)
        while view:
            taken = min(self._left, len(view)) if self._left else len(view)
            part, view = bytes(view[:taken]), view[taken:]
            yield Payload(part) if self._in_payload else Raw(part)
            if self._left:
                yield from self._taken(part)

    def finish(self) -> None:
        """Raises UnknownTarError for a tar that ends too early."""
        if self._then not in (self._on_end, self._on_header) or self._held or self._extensions:
            raise UnknownTarError("it ends within an entry")

    def _taken(self, part: bytes) -> Iterator[TarEntry]:
        if not self._in_payload:
            self._held += part
        self._left -= len(part)
        if self._left:
            return
        held, self._held = bytes(self._held), bytearray()
        self._in_payload = False
        if entry := self._then(held):
            yield entry

    def _expect(self, size: int, then: Callable[[bytes], TarEntry | None]) -> None:
        """What to do with the next bytes; `size` 0: with all that are left."""
        self._left, self._then = size, then

    def _expect_header(self, padding: int = 0) -> None:
        self._expect(padding + _BLOCK, self._on_header)

    def _on_header(self, padded: bytes) -> TarEntry | None:
        block = padded[-_BLOCK:]
        if not any(block):
            self._expect(_BLOCK, self._on_end)
            return None
        header = _header(block)
        if header.type in _EXTENSIONS:
            if header.type in self._extensions:
                raise UnknownTarError("an entry has two extended headers of one type")
            if not 0 < header.size <= _LARGEST_EXTENSION:
                raise UnknownTarError(f"it has an extended header of {header.size} bytes")
            self._expect(header.size + _padding(header.size), functools.partial(self._on_extension, header))
            return None
        entry = _entry(header, block, self._extensions)
        self._extensions = {}
        if (name := posixpath.normpath(entry.name)) in self._names:
            raise UnknownTarError(f"{entry.name} is there twice")
        self._names.add(name)
        if entry.size:
            self._in_payload = True
            self._expect(entry.size, lambda _none: self._expect_header(_padding(entry.size)))
        else:
            self._expect_header()
        return entry

    def _on_extension(self, header: tarfile.TarInfo, held: bytes) -> None:
        self._extensions[header.type] = held[: header.size]
        self._expect_header()

    def _on_end(self, block: bytes) -> None:
        if any(block):
            raise UnknownTarError("an empty block is followed by more entries")
        self._expect(0, self._on_end)


def _padding(size: int) -> int:
    return -size % _BLOCK


def _header(block: bytes) -> tarfile.TarInfo:
    """A header block whose fields Go and Python read alike.

    Its names may end within a character: GNU tar cuts there what an extended header has whole.
    """
    magic = block[257:265]
    plain_gnu = magic == _GNU and not any(block[_AFTER_USTAR])
    if not plain_gnu and (magic != _USTAR or block[_STAR] == b"tar\x00"):
        raise UnknownTarError("it has headers that are neither POSIX nor plain GNU ones")
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise UnknownTarError(f"it has a header that can't be read: {error}") from None
    if header.type not in _KINDS and header.type not in _EXTENSIONS:
        raise UnknownTarError(f"it has an entry of type {header.type!r}")
    return header


def _entry(header: tarfile.TarInfo, block: bytes, extensions: Mapping[bytes, bytes]) -> TarEntry:
    """A header with its extended ones: GNU's over PAX's, as Go takes them."""
    records = _records(extensions.get(tarfile.XHDTYPE, b""))
    given = {key: value for key, value in records.items() if value}
    if strange := [key for key in given if key.startswith(_SPARSE)]:
        raise UnknownTarError(f"it has a sparse file ({strange[0]})")
    long_name = _text(extensions.get(tarfile.GNUTYPE_LONGNAME, b""))
    long_link = _text(extensions.get(tarfile.GNUTYPE_LONGLINK, b""))
    entry = TarEntry(
        kind=_KINDS[header.type],
        name=long_name or given.get("path") or _with_slashes(header, block),
        linkname=long_link or given.get("linkpath") or header.linkname,
        mode=header.mode,
        size=_number(given, "size", header.size),
        uid=_number(given, "uid", header.uid),
        gid=_number(given, "gid", header.gid),
        modified=_time(given.get("mtime", str(header.mtime))),
        accessed=_time(given.get("atime", "")),
        changed=_time(given.get("ctime", "")),
        device=(header.devmajor, header.devminor),
        xattrs={
            key.removeprefix(_XATTR): base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
            for key, value in records.items()
            if key.startswith(_XATTR)
        },
    )
    _require_utf8(entry.name, entry.linkname)
    if entry.size < 0 or (entry.size and entry.kind != "reg"):
        raise UnknownTarError(f"{entry.name} is a {entry.kind} of {entry.size} bytes")
    return entry


def _with_slashes(header: tarfile.TarInfo, block: bytes) -> str:
    """The name with the slashes at its end, which tarfile takes from a directory's."""
    raw = block[:100].partition(b"\0")[0]
    slashes = len(raw) - len(raw.rstrip(b"/"))
    return header.name + "/" * slashes if header.isdir() else header.name


def _require_utf8(*names: str) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UnknownTarError(f"the name {name!a} is not UTF-8") from None


def _text(field_: bytes) -> str:
    try:
        return field_.partition(b"\0")[0].decode()
    except UnicodeDecodeError:
        raise UnknownTarError(f"the name {field_!r} is not UTF-8") from None


def _records(content: bytes) -> dict[str, str]:
    """PAX records: `LENGTH KEY=VALUE\\n` (POSIX.1-2001, pax). Values of extended attributes may be any bytes."""
    found: dict[str, str] = {}
    while content:
        length, _, _ = content.partition(b" ")
        size = int(length) if length.isdigit() else 0
        record, content = content[len(length) + 1 : size], content[size:]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise UnknownTarError("it has PAX records that can't be read")
        is_xattr = key.startswith(_XATTR.encode())
        try:
            found[key.decode()] = value[:-1].decode("utf-8", "surrogateescape" if is_xattr else "strict")
        except UnicodeDecodeError:
            raise UnknownTarError(f"the PAX record {key!r} is not UTF-8") from None
    return found


def _number(given: Mapping[str, str], key: str, otherwise: int) -> int:
    text = given.get(key, str(otherwise))
    if not (text.isascii() and text.isdigit()):
        raise UnknownTarError(f"{key} {text} is no number")
    return int(text)


def _time(seconds: str) -> str:
    """`1700000000.25` as RFC 3339 with as many digits as it needs; nanoseconds, as Go keeps them."""
    whole, _, rest = seconds.partition(".")
    if not whole:
        return ""
    if not (whole.removeprefix("-").isdecimal() and (rest.isdecimal() or not rest) and seconds.isascii()):
        raise UnknownTarError(f"{seconds} is no time")
    sign = -1 if whole.startswith("-") else 1
    moment, nanoseconds = divmod(int(whole) * _SECOND + sign * int(rest[:9].ljust(9, "0")), _SECOND)
    try:
        told = (_EPOCH + timedelta(seconds=moment)).replace(tzinfo=None).isoformat()
    except OverflowError:
        raise UnknownTarError(f"{seconds} is no time of the years 1 to 9999") from None
    digits = f"{nanoseconds:09}".rstrip("0")
    return f"{told}{f'.{digits}' if digits else ''}Z"
