"""Known error texts, their cause and their fix. Rows stand in hints.yaml; containers read the hints.json made of it.

One look-up for all: verdicts, audits, doctor, `truetag hint`, and in an image `doctor hint`.
"""

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from validate import terminal

_ROWS = Path(__file__).resolve().with_name("hints.json")
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_QUOTED = re.compile(r"[\"`]([\w./-]+)[\"`]")
_PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\xa0", "''\"\" ")
_FILE = re.compile(r"\S*/\S*|\S+\.(log|txt|out|err)")
"""One word that is a file's name, and no error text."""
_LOCKED = re.compile(r'^(?:name = ")?([\w.-]+)(?:(?:\[[^]]*\])?==|"\s*\nversion = ")(\d[\w.+!]*)', re.MULTILINE)
"""A name and its version: of pylock.toml and uv.lock, of requirements or of `pip freeze`."""
_RANGE = re.compile(r"\b([a-z_]+)((?:,?[<>]=?\d+(?:\.\d+)*)+)")
_AT_MOST = 3
"""Hints a claim. More than that explain nothing."""
_LONGEST = 240
"""Characters of a line that are shown; a longer argument is no name of a file."""
_GIVE = "give the error's text in quotes, name a log, or pipe it in: COMMAND 2>&1 | ... hint"
_MORE = "give the whole log, whose first error tells most; else search the issues of the traceback's last package"
SHOWN = ("id", "cause", "fix", "source")


@dataclass(frozen=True, kw_only=True)
class Hint:
    """One row: what an error text means, and what to do."""

    id: str
    pattern: str
    """A regular expression, found anywhere in a line, upper and lower case alike."""
    cause: str
    fix: str
    source: str
    host: bool = False
    """The machine is at fault, whatever image runs on it."""
    brought_by: Mapping[str, Any] | None = field(default=None, hash=False)
    """`name` of a package or variable that brings the error, `unless` one of these is there."""
    names: Mapping[str, str] | None = field(default=None, hash=False)
    """What the fix begins with -> where `key` gives one of these names, in lower case, a line each."""
    key: str = r"\1"
    """What a match of the pattern gives, as re.Match.expand takes it."""
    only_named: bool = False
    """It is about these names alone."""

    def of(self, line: str) -> "Hint | None":
        """The row as it answers this line; None: it does not."""
        match = re.search(self.pattern, line, re.IGNORECASE)
        if not match or not self.names:
            return self if match else None
        name = match.expand(self.key).lower()
        named = next((told for told, names in self.names.items() if name in names.split("\n")), "")
        if not named:
            return None if self.only_named else self
        return replace(self, fix=f"{named} {self.fix}")


@functools.cache
def known() -> tuple[Hint, ...]:
    """Every row, in the order in which they are tried."""
    return tuple(Hint(**row) for row in json.loads(_ROWS.read_text(encoding="utf-8")))


def find(texts: Iterable[str]) -> tuple[Hint, ...]:
    """The first matching row of each line, each row once, the earliest lines first."""
    return tuple(hint for hint, _ in islice(explained(texts), _AT_MOST))


def explained(texts: Iterable[str]) -> Iterator[tuple[Hint, str]]:
    """Each row that a line of the texts finds first, and the first of these lines."""
    seen = set()
    plain = (_TERMINAL.sub("", line).translate(_PLAIN).strip(" \t│┃") for text in texts for line in text.splitlines())
    for line in dict.fromkeys(plain):
        spelt = dict.fromkeys((line, _QUOTED.sub(r"'\1'", line), line.replace("`", "")))
        for row in known():
            if told := next(filter(None, map(row.of, spelt)), None):
                if told not in seen:
                    seen.add(told)
                    yield told, line
                break


def texts(value: Any) -> Iterator[str]:
    """Every text in a piece of evidence, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts(item)


def main(arguments: Sequence[str] | None = None, spell: Callable[[str], str] = str) -> int:
    """Explain errors of arguments, files or a pipe. 0: one is known; 1: none is; 2: there is nothing to read.

    `spell`: how this installation writes the commands in a fix.
    """
    parser = argparse.ArgumentParser(prog="hint", description="What an error text means, and what to do.")
    parser.add_argument("texts", nargs="*", metavar="TEXT|FILE", help="default: what a pipe brings")
    parser.add_argument("--lock", metavar="FILE", help="a lock, or what `pip freeze` says: which release is there")
    parser.add_argument("--json", action="store_true", help="machine-readable, on stdout and nothing else")
    options = parser.parse_args(arguments)
    if not options.texts and sys.stdin.isatty():
        return _failed("error hint: no text was given", _GIVE)
    try:
        read = [_content(one) for one in options.texts or ["-"]]
        locked = dict(_LOCKED.findall(Path(options.lock).read_text("utf-8", "replace").lower())) if options.lock else {}
    except OSError as error:
        return _failed(f"error {error}", "name a file, or give the error's text in quotes")
    found = [(replace(hint, fix=spell(_compared(hint, locked))), line) for hint, line in explained(read)]
    if options.json:
        rows = [{"line": line, **{key: getattr(hint, key) for key in SHOWN}} for hint, line in found]
        sys.stdout.write(json.dumps({"hints": rows}, indent=1) + "\n")
        return 0 if found else 1
    for hint, line in found:
        told = (line[:_LONGEST], f"  cause: {hint.cause}", f"  fix: {hint.fix}", f"  source: {hint.source}", "")
        sys.stdout.write("\n".join(terminal.wrapped(one, terminal.width_of(sys.stdout)) for one in told) + "\n")
    if not found:
        count = sum(len(text.splitlines()) for text in read)
        _failed(f"no known error in {count} line{'s' * (count != 1)}", _MORE if count else _GIVE)
    return 0 if found else 1


def _compared(hint: Hint, locked: Mapping[str, str]) -> str:
    """The fix, as it is for the locked release of the package that it names."""
    asked = _RANGE.search(hint.fix) if hint.only_named else None
    version = locked.get(asked[1].replace("_", "-"), locked.get(asked[1])) if asked else None
    if not asked or not version:
        return hint.fix
    here, bounds = _release(version), dict(re.findall(r"([<>])=?([\d.]+)", asked[2]))
    first, _, rest = hint.fix.partition(". ")
    told = f"{first}. Locked is {asked[1]} {version}"
    if ">" in bounds and here < _release(bounds[">"]):
        return f'{told}, which is too old: `pip install "{asked[0]}"`.'
    if "<" in bounds and here >= _release(bounds["<"]):
        return f'{told}, which is too new: update what asks for it, or `pip install "{asked[0]}"`.'
    return f"{told}, which has it: another installation is read, or this is not its lock. {rest}"


def _release(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def _failed(cause: str, then: str) -> int:
    sys.stderr.write(f"{cause}\n      next: {then}\n")
    return 2


def _content(argument: str) -> str:
    """Of standard input (`-`), of a file, or the argument itself. Raises OSError: it names a file, and is none."""
    if argument == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    if not 0 < len(argument) <= _LONGEST or "\n" in argument:
        return argument
    path = Path(argument)
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace")
    if path.is_dir() or _FILE.fullmatch(argument):
        raise FileNotFoundError(f"{argument} is {'a folder' if path.is_dir() else 'no file here'}")
    return argument
