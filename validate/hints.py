"""Known error texts, their cause and their fix: the rows of hints.yaml. They help people, and never change a verdict.

One look-up for all: verdicts, audits, doctor, `truetag hint`, and in an image `doctor hint`.
"""

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from validate import terminal

TABLE = Path(__file__).resolve().with_name("hints.yaml")
IN_CONTAINERS = "hints.json"
"""The same rows beside this file in a container, whose Python has no YAML (images/validation/containers.py)."""
SHOWN = ("id", "cause", "fix", "source")
_READ = ("pattern", *SHOWN)
"""The rest of a row is for its tests."""

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_QUOTED = re.compile(r"[\"`]([\w./-]+)[\"`]")
_PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\xa0", "''\"\" ")
_FILE_NAME = re.compile(r"\S*/\S*|\S+\.(log|txt|out|err)")
"""One word that is a file's name, and no error text."""
_AT_MOST = 3
"""Hints a claim. More than that explain nothing."""
_LONGEST = 240
"""Characters of a line that are shown; a longer argument is no name of a file."""
_GIVE = "give the error's text in quotes, name a log, or pipe it in: COMMAND 2>&1 | ... hint"
_MORE = "give the whole log, whose first error tells most; else search the issues of the traceback's last package"


@dataclass(frozen=True, kw_only=True)
class Hint:
    """One row: what an error text means, and what to do."""

    id: str
    pattern: str
    """A regular expression, found anywhere in a line, upper and lower case alike."""
    cause: str
    fix: str
    source: str

    def matches(self, line: str) -> bool:
        """Whether this row explains a line, however it quotes names: "x", `x`, 'x' or bare."""
        spellings = (line, _QUOTED.sub(r"'\1'", line), line.replace("`", ""))
        return any(re.search(self.pattern, spelling, re.IGNORECASE) for spelling in spellings)


@functools.cache
def known() -> tuple[Hint, ...]:
    """Return every row, in the order in which they are tried."""
    rows = []
    for row in _rows():
        rows.append(Hint(**{name: row[name] for name in _READ}))
    return tuple(rows)


def as_json() -> bytes:
    """Return the rows as the suite takes them into a container; the same bytes for the same table."""
    rows = [{name: getattr(hint, name) for name in _READ} for hint in known()]
    return (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()


def _rows() -> Sequence[Mapping[str, str]]:
    """Read the table: as JSON in a container, else as YAML, which the host's Python has."""
    generated = TABLE.with_name(IN_CONTAINERS)
    if generated.is_file():
        rows: Sequence[Mapping[str, str]] = json.loads(generated.read_text(encoding="utf-8"))
    else:
        import yaml

        # libyaml's loader is some 15 times faster, and not everywhere. Every value is text.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        rows = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=loader)["hints"]
    return rows


def find(texts: Iterable[str]) -> tuple[Hint, ...]:
    """Return the first matching row of each line, each row once, the earliest lines first."""
    return tuple(hint for hint, _ in islice(explained(texts), _AT_MOST))


def explained(texts: Iterable[str]) -> Iterator[tuple[Hint, str]]:
    """Yield each row that a line of the texts finds first, and the first of these lines."""
    lines: dict[str, None] = {}
    for text in texts:
        for line in text.splitlines():
            plain = _TERMINAL_CODES.sub("", line).translate(_PLAIN).strip(" \t│┃")
            lines[plain] = None

    seen = set()
    for line in lines:
        hint = next((row for row in known() if row.matches(line)), None)
        if hint and hint not in seen:
            seen.add(hint)
            yield hint, line


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a piece of evidence, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


def main(arguments: Sequence[str] | None = None, spell: Callable[[str], str] = str) -> int:
    """Explain errors of arguments, files or a pipe. 0: one is known; 1: none is; 2: there is nothing to read.

    `spell`: how this installation writes the commands in a fix.
    """
    parser = argparse.ArgumentParser(
        prog="hint", description="What an error text means, and what to do."
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT|FILE", help="default: what a pipe brings")
    parser.add_argument(
        "--json", action="store_true", help="machine-readable, on stdout and nothing else"
    )
    options = parser.parse_args(arguments)
    if not options.texts and sys.stdin.isatty():
        return _fail("error hint: no text was given", _GIVE)
    try:
        contents = [_content(argument) for argument in options.texts or ["-"]]
    except OSError as error:
        return _fail(f"error {error}", "name a file, or give the error's text in quotes")

    hints = []
    for hint, line in explained(contents):
        hints.append((replace(hint, fix=spell(hint.fix)), line))

    if options.json:
        rows = [
            {"line": line, **{name: getattr(hint, name) for name in SHOWN}} for hint, line in hints
        ]
        sys.stdout.write(json.dumps({"hints": rows}, indent=1) + "\n")
        return 0 if hints else 1

    width = terminal.width_of(sys.stdout)
    for hint, line in hints:
        shown = (
            line[:_LONGEST],
            f"  cause: {hint.cause}",
            f"  fix: {hint.fix}",
            f"  source: {hint.source}",
            "",
        )
        for paragraph in shown:
            sys.stdout.write(terminal.wrapped(paragraph, width) + "\n")
    if not hints:
        count = sum(len(text.splitlines()) for text in contents)
        _fail(f"no known error in {count} line{'s' * (count != 1)}", _MORE if count else _GIVE)
    return 0 if hints else 1


def _fail(cause: str, then: str) -> int:
    sys.stderr.write(f"{cause}\n      next: {then}\n")
    return 2


def _content(argument: str) -> str:
    """Return the text of standard input (`-`), of a file, or the argument itself.

    Raises OSError where the argument names a file that is not there.
    """
    if argument == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    if not 0 < len(argument) <= _LONGEST or "\n" in argument:
        return argument
    path = Path(argument)
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace")
    if path.is_dir() or _FILE_NAME.fullmatch(argument):
        raise FileNotFoundError(f"{argument} is {'a folder' if path.is_dir() else 'no file here'}")
    return argument
