"""C++ symbol names made readable enough for a sentence: the name without arguments and template parameters."""

from __future__ import annotations

import re

_SPECIAL = {"TV": "vtable of ", "TI": "type information of ", "TS": "type name of ", "GV": "guard of ", "TT": "VTT of "}
_PREFIX = re.compile(r"_Z(TV|TI|TS|TT|GV)?(N)?[rVK]*")
_STANDARD = {"St": "std", "Sa": "std::allocator", "Ss": "std::string", "Sb": "std::basic_string"}
_LENGTH = re.compile(r"\d{1,4}")
_LONGEST = 100


def readable(symbol: str) -> str:
    """`at::native::copy_` of `_ZN2at6native5copy_ERKNS_6TensorE`; a name that is not C++'s as it is.

    Itanium C++ ABI, section 5.1, of which this reads nested names and the standard abbreviations.
    """
    name, _, version = symbol.partition("@")
    start = _PREFIX.match(name)
    if not start:
        return symbol[:_LONGEST]
    parts = _parts(name, start.end())
    if not parts:
        return symbol[:_LONGEST]
    whole = _SPECIAL.get(start[1] or "", "") + "::".join(parts)
    return whole[:_LONGEST] + (f"@{version}" if version else "")


def _parts(name: str, position: int) -> list[str]:
    parts: list[str] = []
    while position < len(name):
        if name[position : position + 2] in _STANDARD:
            parts.append(_STANDARD[name[position : position + 2]])
            position += 2
            continue
        length = _LENGTH.match(name, position)
        if not length or length.end() + int(length[0]) > len(name):
            break
        position = length.end() + int(length[0])
        part = name[length.end() : position]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part)
    return parts
