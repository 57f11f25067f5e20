"""Explains error texts: looks them up in hints.yaml, which says what each means and what to do.

Hints help people and never change a verdict. Verdicts, audits, doctor, `truetag hint` and, in an
image, `doctor hint` all look them up here.
"""

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validate import elsewhere, terminal
from validate.compressed import decompressing

TABLE = Path(__file__).resolve().with_name("hints.yaml")
IN_CONTAINERS = "hints.json"
"""The file beside this one that has the same rows in a container, whose Python has no YAML
(images/validation/containers.py)."""
_FIELDS = ("pattern", "id", "cause", "fix", "source", "yields_to", "frame")
"""Keys of a row that are read here. The others are for its tests."""
_ANY = "any"
"""The value of `yields_to` with which every row that explains a cause hides a row."""

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Colours, and what else a terminal is told by escape sequences: CSI and OSC of ECMA-48."""
_QUOTED = re.compile(r"[\"`]([\w./-]+)[\"`]")
"""A name in double quotes or backticks."""
_PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\xa0", "''\"\" ")
"""Typographic quotes and the space that does not break -> what a keyboard has."""
_FRAME = re.compile(
    r'([^\s"\[]+(?<!deprecation)(?<!_validators)(?:\.py|>))(?:"?, line \d+|:\d+|\]\(\S+\))?,? in ',
    re.IGNORECASE,
)
"""A frame of a traceback, as Python, rich or a notebook prints it: the path of the file.

Not of wrappers, which only pass a call on."""
_FILE_NAME = re.compile(r"\S*/\S*|\S+\.(log|txt|out|err)")
"""A single word that is the name of a file, not an error text."""
_MOST_HINTS = 3
"""How many hints `find` returns. More than that explain nothing."""
_LONGEST = 240
"""How many characters of a line are shown. A longer argument is not the name of a file."""
_MOST_SOURCES = 3
"""How many sources of a hint people see; JSON has all."""
_SEED = "seed:"
"""The beginning of a source that is a row of a page without a known address (hints.yaml)."""
_STANDARD_INPUT = "-"
_HOW_TO_GIVE_TEXT = (
    "give the error's text in quotes, name a log, or pipe it in: `COMMAND 2>&1 | {}`"
)
"""With the command that reads it in place of the braces."""
_HOW_TO_SEARCH_ON = (
    "give the whole log (`COMMAND 2>&1 | {}`, or the log's name as the argument), whose first "
    "error tells most; else search the message's words in the issues of the program that printed "
    "it (of a traceback: of its last package)"
)
"""With the same command in place of the braces."""


@dataclass(frozen=True, kw_only=True)
class Hint:
    """One row of the table: what an error text means, and what to do."""

    id: str
    pattern: str
    """A regular expression, searched for anywhere in a line, without regard to case."""
    cause: str
    fix: str
    source: str
    yields_to: str = ""
    """The ids of hints that hide this one where they explain another line, or `any`; empty: none.

    `any` stands for every hint that does not have `any` itself."""
    frame: str = ""
    """A regular expression for the path of the file that raised the error; empty: any, or none.

    The same line has another cause where a library raises it than where a program does."""

    @property
    def remedy(self) -> str:
        """Return the fix, and what serves without Docker in place of Docker's options in it."""
        return elsewhere.with_replacements(self.fix)

    def matches(self, line: str, frame: str) -> bool:
        """Return whether this hint explains a line, however it quotes names: "x", `x`, 'x' or x.

        The pattern is tried on the line as it is, with single quotes instead, and without
        backticks.

        frame: the path of the file in the last frame of the traceback above the line, or empty.
        """
        if self.frame and not _compile(self.frame).search(frame):
            return False
        # A set, as most lines have one spelling only.
        spellings = {line, _QUOTED.sub(r"'\1'", line), line.replace("`", "")}
        return any(_compile(self.pattern).search(spelling) for spelling in spellings)

    def is_hidden_by(self, other: "Hint") -> bool:
        """Return whether this hint is not shown beside another one of the same text."""
        if self.yields_to == _ANY:
            return other.yields_to != _ANY
        return other.id in self.yields_to.split()

    def to_json(self) -> dict[str, str]:
        """Return what JSON shows of it: what people read."""
        return {"id": self.id, "cause": self.cause, "fix": self.remedy, "source": self.source}


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    """Compile the pattern of a row once: `re` keeps fewer patterns than the table has rows."""
    return re.compile(pattern, re.IGNORECASE)


@functools.cache
def known() -> tuple[Hint, ...]:
    """Return every row of the table, in the order in which they are tried."""
    rows = []
    for row in _read_rows():
        fields = {name: row[name] for name in _FIELDS if name in row}
        rows.append(Hint(**fields))
    return tuple(rows)


def as_json() -> bytes:
    """Return the table as JSON, for containers; the same bytes for the same table."""
    rows = []
    for hint in known():
        rows.append({name: getattr(hint, name) for name in _FIELDS})
    return (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()


def _read_rows() -> Sequence[Mapping[str, str]]:
    """Return the rows of the table of hints, each a mapping from a field of Hint to its text.

    In a container they come from a JSON file that was generated for it, because a reader of YAML
    may be missing there; elsewhere from hints.yaml.
    """
    generated = TABLE.with_name(IN_CONTAINERS)
    if generated.is_file():
        rows: Sequence[Mapping[str, str]] = json.loads(generated.read_text(encoding="utf-8"))
    else:
        import yaml

        # libyaml's loader is some 15 times faster, but not installed everywhere. Both read every
        # value as text.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        rows = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=loader)["hints"]
    return rows


def find(texts: Iterable[str]) -> tuple[Hint, ...]:
    """Return the hints for these texts, at most three, in the order of the lines they explain."""
    hints = [hint for hint, _line in explain_lines(texts)]
    return tuple(hints[:_MOST_HINTS])


def explain_lines(texts: Iterable[str]) -> list[tuple[Hint, str]]:
    """Return each hint that explains a line of these texts, with the first line that it explains.

    A hint has the pattern of an error, its cause and its fix. A line is explained by the first hint
    of the table that matches it; lines that no hint matches are passed over. Lines are returned
    without colours and frames. A hint that yields to another one of these texts is left out: `CUDA
    error` says nothing beside the line that names the cause.
    """
    first_lines: dict[Hint, str] = {}
    for line, frame in lines_with_frames(texts).items():
        hint = _first_match(line, frame)
        if hint:
            first_lines.setdefault(hint, line)

    explained = []
    for hint, line in first_lines.items():
        if not any(hint.is_hidden_by(other) for other in first_lines):
            explained.append((hint, line))
    return explained


def lines_with_frames(texts: Iterable[str]) -> dict[str, str]:
    """Return each different line, and the path in the last frame above its first occurrence.

    The path is empty where no frame stands above the line.
    """
    # Logs repeat lines, and matching is slow.
    frames: dict[str, str] = {}
    for text in texts:
        path = ""
        for decorated in text.splitlines():
            line = _without_decoration(decorated)
            frame = _FRAME.search(line)
            if frame:
                path = frame[1]
            frames.setdefault(line, path)
    return frames


def _without_decoration(line: str) -> str:
    """Return a line without colours, typographic quotes and the frames that rich draws."""
    return _TERMINAL_CODES.sub("", line).translate(_PLAIN).strip(" \t│┃")


def _first_match(line: str, frame: str) -> Hint | None:
    """Return the first hint of the table that explains a line below such a frame."""
    for hint in known():
        if hint.matches(line, frame):
            return hint
    return None


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


def main(
    arguments: Sequence[str] | None = None,
    program: str = "doctor hint",
    spell_commands: Callable[[str], str] = str,
) -> int:
    """Print hints about the errors in texts, files or a pipe, and return the exit status.

    0: a known error was found; 1: none was; 2: there is nothing to read.

    arguments: those of the command line, without the program's name; None: sys.argv's.
    program: how this is called here.
    spell_commands: gets the text of a fix, and returns it with our commands written as they are
        called in this installation: `truetag lock` in place of `nox -s lock`.
    """
    options = _parser(program).parse_args(arguments)
    how_to_give_text = _HOW_TO_GIVE_TEXT.format(program)
    # Without arguments the text comes from a pipe. A terminal would wait for somebody to type.
    if not options.texts and sys.stdin.isatty():
        _complain("error hint: no text was given", how_to_give_text)
        return 2
    try:
        contents = [_read_text(argument) for argument in options.texts or [_STANDARD_INPUT]]
    except OSError as error:
        _complain(f"error {error}", "name a file, or give the error's text in quotes")
        return 2

    hints = []
    for hint, line in explain_lines(contents):
        hints.append((replace(hint, fix=spell_commands(hint.fix)), line))

    if options.json:
        rows = [{"line": line, **hint.to_json()} for hint, line in hints]
        sys.stdout.write(json.dumps({"hints": rows}, indent=1) + "\n")
    elif hints:
        for hint, line in hints:
            _print_hint(hint, line)
    else:
        count = sum(len(text.splitlines()) for text in contents)
        cause = f"no known error in {count} line{'s' * (count != 1)}"
        if not count:
            cause = "no known error, as there is no text: what was given is empty"
        next_step = _HOW_TO_SEARCH_ON.format(program) if count else how_to_give_text
        _complain(cause, next_step)
    return 0 if hints else 1


def _parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of `hint`'s command line."""
    parser = argparse.ArgumentParser(
        prog=program, description="What an error text means, and what to do."
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT|FILE", help="default: what a pipe brings")
    parser.add_argument(
        "--json", action="store_true", help="machine-readable, on stdout and nothing else"
    )
    return parser


def _print_hint(hint: Hint, line: str) -> None:
    """Print a line of an error, and its known cause, fix and source, wrapped for the terminal.

    A very long line is cut, and an empty line follows.
    """
    width = terminal.width_of(sys.stdout)
    paragraphs = (
        line[:_LONGEST],
        f"  cause: {hint.cause}",
        f"  fix: {hint.fix}",
        *(f"  {sentence}" for sentence in elsewhere.replacements_in(hint.fix)),
        *describe_sources(hint.source),
        "",
    )
    for paragraph in paragraphs:
        sys.stdout.write(terminal.wrapped(paragraph, width) + "\n")


def describe_sources(source: str) -> Iterator[str]:
    """Yield the line that names the sources of a hint: the first three, and how many more.

    Left out are pages whose names mean nothing outside this repository (`seed:`). Yields nothing if
    there is no other source.
    """
    sources = [text for text in source.split(", ") if not text.startswith(_SEED)]
    if not sources:
        return
    shown = ", ".join(sources[:_MOST_SOURCES])
    left_out = len(sources) - _MOST_SOURCES
    yield f"  source: {shown} and {left_out} more" if left_out > 0 else f"  source: {shown}"


def _complain(cause: str, next_step: str) -> None:
    """Print to stderr what is wrong and what to do next, wrapped for the terminal."""
    width = terminal.width_of(sys.stderr)
    for paragraph in (cause, f"      next: {next_step}"):
        sys.stderr.write(terminal.wrapped(paragraph, width, indent="      ") + "\n")


def _read_text(argument: str) -> str:
    """Return the text that an argument stands for: standard input (`-`), a file's, or its own.

    Raises OSError if the argument names a folder or a compressed file, or looks like the name of a
    file and is none.
    """
    if argument == _STANDARD_INPUT:
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    # An empty text, a very long one, or one of several lines is an error, not the name of a file.
    if not 0 < len(argument) <= _LONGEST or "\n" in argument:
        return argument

    path = Path(argument)
    if path.is_file():
        content = path.read_bytes()
        decompress = decompressing(path, content)
        if decompress:
            raise OSError(f"{argument} is compressed: pipe its text in, by `{decompress}`")
        if b"\0" in content:
            raise OSError(f"{argument} is no text: it has zero bytes")
        return content.decode("utf-8", "replace")
    if path.is_dir():
        raise FileNotFoundError(f"{argument} is a folder")
    # A word such as `logs/run` or `train.log`: to look for it in the table of errors would hide
    # that the name is mistyped.
    if _FILE_NAME.fullmatch(argument):
        raise FileNotFoundError(f"{argument} is no file here")
    return argument
