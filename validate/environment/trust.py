"""Whom an image trusts: certificate authorities beyond its package's, and accounts that open a way in."""

from __future__ import annotations

from pathlib import Path

_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_AUTHORITIES = "/usr/share/ca-certificates"
_END = "-----END CERTIFICATE-----"
_LOCKED = frozenset({"", "*", "!", "!*", "!!", "x"})


def unknown_authorities(bundle: str = _BUNDLE, authorities: str = _AUTHORITIES) -> int:
    """How many certificates of the bundle are in no file of Debian's ca-certificates."""
    if not Path(bundle).is_file():
        return 0
    known = {one for file in sorted(Path(authorities).rglob("*.crt")) for one in _certificates(file)}
    return len([one for one in _certificates(Path(bundle)) if one not in known])


def _certificates(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8", errors="replace")
    return ["".join(one.split()) for one in text.split(_END) if one.strip()]


def accounts(passwd: str = "/etc/passwd", shadow: str = "/etc/shadow") -> list[str]:
    """What opens a way to root: a second account of uid 0, a password that can be entered or is empty."""
    found = []
    for name, password, uid in _fields(passwd):
        if uid == "0" and name != "root":
            found.append(f"{name} has uid 0")
        if password == "":
            found.append(f"{name} has no password")
    for name, password, _ in _fields(shadow):
        if password not in _LOCKED:
            found.append(f"{name} has a password")
        elif password == "":
            found.append(f"{name} has no password")
    return found


def _fields(file: str) -> list[tuple[str, str, str]]:
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = ([*line.split(":"), "", ""] for line in lines if ":" in line)
    return [(row[0], row[1], row[2]) for row in rows]
