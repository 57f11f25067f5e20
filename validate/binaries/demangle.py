"""C++ symbol names made readable enough for a sentence: names and what they are templates of, without arguments."""

import re

_SPECIAL = {"TV": "vtable of ", "TI": "type information of ", "TS": "type name of ", "GV": "guard of ", "TT": "VTT of "}
_PREFIX = re.compile(r"_Z(TV|TI|TS|TT|GV)?")
_NESTED = re.compile(r"(N)?[rVK]*")
_STANDARD = {"St": "std", "Sa": "std::allocator", "Ss": "std::string", "Sb": "std::basic_string"}
_LENGTH = re.compile(r"\d{1,4}")
_SUBSTITUTION = re.compile(r"S[0-9A-Z]*_")
"""Stands for a part of the name that was there before; what it was is left out."""
_LONGEST = 100
_DEPTH = 3


def readable(symbol: str) -> str:
    """`at::native::copy_` of `_ZN2at6native5copy_ERKNS_6TensorE`; a name that is not C++'s as it is.

    Itanium C++ ABI, section 5.1, of which this reads nested names, the standard abbreviations, and of template
    parameters the first, where that is a name too.
    """
    name, _, version = symbol.partition("@")
    start = _PREFIX.match(name)
    whole = _name(name, start.end(), _DEPTH) if start else ""
    if not start or not whole:
        return symbol[:_LONGEST]
    return (_SPECIAL.get(start[1] or "", "") + whole)[:_LONGEST] + (f"@{version}" if version else "")


def _name(text: str, position: int, depth: int) -> str:
    """The name at this position; empty where there is none."""
    nested = _NESTED.match(text, position)
    parts, position = _parts(text, nested.end() if nested else position)
    inner = _name(text, position + 1, depth - 1) if parts and depth and text[position : position + 1] == "I" else ""
    return "::".join(parts) + (f"<{inner}>" if inner else "")


def _parts(text: str, position: int) -> tuple[list[str], int]:
    parts: list[str] = []
    while position < len(text):
        if text[position : position + 2] in _STANDARD:
            parts.append(_STANDARD[text[position : position + 2]])
            position += 2
            continue
        if again := _SUBSTITUTION.match(text, position):
            position = again.end()
            continue
        length = _LENGTH.match(text, position)
        if not length or length.end() + int(length[0]) > len(text):
            break
        position = length.end() + int(length[0])
        part = text[length.end() : position]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part)
    return parts, position
