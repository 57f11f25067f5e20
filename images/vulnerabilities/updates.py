"""Debian packages that moved, or should, between two builds of an image. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from images.publish.text import listed
from images.vulnerabilities.findings import Finding
from images.vulnerabilities.inventory import DEB, Inventory

LOG = "CHANGES.md"


@dataclass(frozen=True, kw_only=True)
class PackageChange:
    """One package. `before` or `after` is empty where it was added or removed; `ids`: what the newer version fixes."""

    name: str
    before: str
    after: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        fixes = f"  {listed(self.ids)}" if self.ids else ""
        return f"{self.name}  {self.before or '-'} -> {self.after or '-'}{fixes}"


def pending(found: Sequence[Finding]) -> tuple[PackageChange, ...]:
    """What the security archive has for an image, a package each."""
    rows: dict[str, PackageChange] = {}
    for one in found:
        known = rows.get(one.package)
        ids = (*(known.ids if known else ()), one.id)
        rows[one.package] = PackageChange(name=one.package, before=one.version, after=one.fixed[-1], ids=ids)
    return tuple(rows[name] for name in sorted(rows))


def changes(before: Inventory, after: Inventory, wanted: Sequence[PackageChange]) -> tuple[PackageChange, ...]:
    """How Debian's packages of two builds differ. `wanted`: what was pending, for the ids."""
    old, new = ({one.name: one.version for one in image.of(DEB)} for image in (before, after))
    ids = {one.name: one.ids for one in wanted}
    return tuple(
        PackageChange(name=name, before=old.get(name, ""), after=new.get(name, ""), ids=ids.get(name, ()))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """A rebuild that took the updates."""

    digest: str
    sentence: str
    """What its validation showed."""
    changes: Sequence[PackageChange]
    left: Sequence[PackageChange]
    """Updates that it did not take."""


def log(before: Inventory, wanted: Sequence[PackageChange], rebuilt: Rebuilt | None, then: Sequence[str]) -> str:
    """CHANGES.md: what is pending, and what a rebuild did about it. `then`: the next commands."""
    parts = [
        f"# Take Debian's security updates into {before.image}",
        f"{before.digest} has {len(wanted)} packages with a newer version in Debian's security archive.",
        _table(wanted),
    ]
    if rebuilt:
        parts += [f"The rebuild is {rebuilt.digest}: {rebuilt.sentence}", _table(rebuilt.changes)]
        parts += [f"It still has {len(rebuilt.left)} of them, which its base brings:", _table(rebuilt.left)] * bool(
            rebuilt.left
        )
    parts += ["Next:", "\n".join(f"- {text}" for text in then)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[PackageChange]) -> str:
    return "\n".join(["| package | from | to | fixes |", "|---|---|---|---|", *_rows(rows)])


def _rows(rows: Sequence[PackageChange]) -> Iterator[str]:
    for one in rows:
        yield f"| {one.name} | {one.before or '-'} | {one.after or '-'} | {', '.join(one.ids) or '-'} |"
