"""An audit of packages that no image holds: a lock, requirements, `pip freeze`, a venv, a folder of packages.

uv fetches the wheels, by hash where the file has hashes, and unpacks them. Nothing of them runs: our own Python reads
the files.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from images.audit import checks, conduct, expected
from images.audit.model import Audit, Check, Outcome
from images.config.facts import Facts
from images.errors import UserError, failed, wrong
from images.host import cache
from images.locking import uv
from images.locking.inputs import Target
from images.planning.chooser import Machine
from validate import suite
from validate.claims import ClaimSet, Tier
from validate.environment.user_environment import UserEnvironment

STDIN = "-"
_PARTIAL = "libraries, symbols: it contradicts itself, so dependencies that it does not name were left out"
_PLATFORM = "x86_64-manylinux_2_36"
_WHEELS = ("--only-binary", ":all:", "--no-config", "--quiet", "--no-progress", "--color", "never")
_INSTALL = re.compile(
    r"\s*(?:RUN\s+)?(?:-\S+\s+)*(?:\w+=\S*\s+)*(?:python[\d.]*\s+-m\s+|uv\s+)?pip[\d.]*\s+install\s(.*)"
)
_DOCKERFILE = re.compile(r"^(Dockerfile|Containerfile)|\.Dockerfile$")
_NESTED = re.compile(r"^\s*(-r|-c|--requirement|--constraint)[ \t=]+(?!\w+:)(\S+).*", re.MULTILINE)
_UNREAD = re.compile(r"^[ \t]*(?:-e|-r|--editable|--requirement|--no-binary)\b.*", re.MULTILINE)
"""What would be built here, in spite of --only-binary: that runs code of it. And files of other hosts, which may name
such."""
_WITH_A_VALUE = re.compile(r"-[rcfit]|--(?:requirement|constraint|find-links|(?:extra-)?index-url|target|prefix|root)")
_SOURCE_ONLY = re.compile(r"([A-Za-z][\w.-]*)(?:\{[^}]*\})?(?:[<>=!~]\S*)? ha(?:s|ve) no usable wheels")


@dataclass(frozen=True)
class Laid:
    """Packages as they would be installed: their folder, its Python, and what laying them out told."""

    site: Path
    python: str
    found: tuple[Check, ...] = ()
    here: bool = False
    """They are installed on this machine."""
    alone: bool = False
    """As it contradicts itself, just what it names was installed."""


def audit(
    source: str, python: str, facts: Facts, machine: Machine | None, progress: Callable[[str], None]
) -> tuple[Audit, Sequence[Mapping[str, Any]]]:
    """Audit the packages of a file, a folder or standard input. `python`: `3.12`; empty: the folder's own, or ours.

    Returns also what it was judged from. Raises UserError: it can't be read, resolved or fetched.
    """
    with _laid_out(source, python, progress) as laid:
        home, place = laid.site.parents[2], source if source != STDIN else "standard input"
        user: dict[str, Any] = {"environ": {}, "directory": "/", "python": str(home / "bin" / f"python{laid.python}")}
        survey = _survey(laid.site, user)
        one = dict(survey["environments"][0])
        if not one["distributions"]:
            then = "name the Python that it is for (--python), or what has wheels"
            raise failed(source, f"none of its packages has a wheel for Python {laid.python}", then)
        one["partial"] = laid.alone and any(text.endswith(checks.NOT_THERE) for text in checks.unmet(one))
        progress(f"{len(one['distributions'])} distributions for Python {laid.python}")
        code = checks.library_code(survey)
        claims, unknown = expected.expected(one, code, facts)
        static = _judgeable(claims.of([Tier.STATIC]), laid, partial=one["partial"])
        (home / "claims.json").write_text(static.dumps())
        looked_at = UserEnvironment(**user, start=one["start"])
        records = list(suite.run(static, home / "claims.json", jobs=os.cpu_count() or 1, user=looked_at))
        verdict = conduct.judged("", static, records)
        told = [
            *laid.found,
            *([conduct.left_out("", _PARTIAL)] if one["partial"] else ()),
            *checks.of_environment(one, []),
            *checks.from_verdict("", verdict),
            *(conduct.left_out("", text) for text in unknown),
            *checks.of_versions(one, facts),
            *(checks.of_machine(one, code, facts, machine) if machine else ()),
        ]
        fixed = (_with_fix(check, one, laid.python) for check in told)
        result = Audit(
            image=place,
            digest="",
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            size=sum(path.stat().st_size for path in laid.site.rglob("*") if path.is_file()),
            system="",
            user="",
            checks=tuple(replace(one, text=one.text.replace(str(home), ""), environment=place) for one in fixed),
            environments=(conduct.environment_of({**one, "prefix": place, "kind": "packages", "first": False}),),
            device_code=code,
            runs=checks.runs(code, str(one["torch"].get("cuda", ""))),
            drivers=checks.drivers([one], facts),
        )
        return result, [conduct.evidence_of(place, verdict)]


def _survey(site: Path, user: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is installed there, read by a process of its own, as in an image (validate/survey/main.py)."""
    file = site.parents[2] / "user.json"
    file.write_text(json.dumps(user))
    command = [sys.executable, "-I", "-S", str(Path(suite.__file__).parent), "survey", str(file), str(site)]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


@contextmanager
def _laid_out(source: str, python: str, progress: Callable[[str], None]) -> Iterator[Laid]:
    """The folder of packages, in a place where an interpreter of that version would look for it."""
    given = Path(source)
    there = next(iter(sorted(given.glob("lib/python*/site-packages"))), given) if given.is_dir() else None
    named = re.search(r"/python(\d\.\d+)/", f"{there.resolve()}/") if there else None
    python = python or (named[1] if named else "{}.{}".format(*sys.version_info))
    cache.folder().mkdir(parents=True, exist_ok=True)
    # Beside uv's own cache, whose files it links here where it can: nothing is copied.
    with tempfile.TemporaryDirectory(prefix="audit-", dir=cache.folder()) as scratch:
        home = Path(scratch)
        site = home / "lib" / f"python{python}" / "site-packages"
        (home / "bin").mkdir()
        (home / "bin" / f"python{python}").symlink_to(os.path.realpath(sys.executable))
        site.parent.mkdir(parents=True)
        if there is None:
            yield _installed(source, python, site, progress)
            return
        if not any(there.glob("*.dist-info")):
            cause = "has no installed packages (no *.dist-info)"
            raise wrong(source, cause, "name a virtual environment, a site-packages folder, or a lock")
        site.symlink_to(there.resolve())
        yield Laid(site, python, here=True)


def _installed(source: str, python: str, site: Path, progress: Callable[[str], None]) -> Laid:
    """Install what a file asks for, without what has no wheel. Where it contradicts itself: just what it names."""
    whole, text, unread = _requirements(source)
    asked, excluded = (site.parents[2] / name for name in ("requirements.txt", "excluded.txt"))
    asked.write_text(_UNREAD.sub("", text))
    target = ["--target", str(site), "--python", sys.executable, "--python-version", python]
    command = ["pip", "install", *_WHEELS, *target, "--python-platform", _PLATFORM, "-r", str(asked)]
    found = [conduct.left_out("", f"{words}: not looked at") for words in [*unread, *_UNREAD.findall(text)]]
    left: list[str] = []
    contradicts = False
    while True:
        excluded.write_text("\n".join(left))
        progress(f"fetching the wheels of {source}")
        done = uv.run([*command, "--excludes", str(excluded), *(["--no-deps"] if whole or contradicts else [])])
        if not done.returncode:
            return Laid(site, python, tuple(found), alone=contradicts)
        told = " ".join(done.stderr.partition("error: ")[2].partition("\nhint:")[0].split())
        if (name := _SOURCE_ONLY.search(told)) and name[1] not in left:
            left.append(name[1])
            found.append(conduct.left_out("", f"{name[1]} is published as source only: not looked at"))
        elif "No solution found" in told and not whole and not contradicts:
            contradicts = True
            found.append(checks.contradiction(told.partition("cause: ")[2] or told))
        else:
            cause = f"uv failed: {told or done.stderr.strip()}"
            raise failed(source, cause, "mend that line, or name another index: UV_DEFAULT_INDEX")


def _requirements(source: str) -> tuple[bool, str, list[str]]:
    """Whether a file names all that is to be installed, its requirements, and what of it was not read."""
    path = Path(source)
    try:
        if source == STDIN:
            return False, _whole(sys.stdin.read(), Path.cwd(), set()), []
        text = path.read_text()
        if path.name == "uv.lock":
            options = ("--frozen", "--no-emit-workspace", "--format", "requirements-txt", "--quiet", "--no-config")
            done = uv.run(["export", "--project", str(path.parent), *options])
            if done.returncode:
                raise failed(source, f"uv can't read it: {done.stderr.strip()}", "keep its pyproject.toml beside it")
            return True, done.stdout, []
        if path.suffix == ".toml":
            lines = []  # with hashes (PEP 751)
            for row in tomllib.loads(text)["packages"]:
                hashes = (f"--hash=sha256:{one['hashes']['sha256']}" for one in row.get("wheels", ()))
                marker = f" ; {row['marker']}" if "marker" in row else ""
                what = f"{row['name']}=={row['version']}{marker}" if "version" in row else f"-e {row['name']}"
                lines.append(" ".join([what, *hashes]))
            return True, "\n".join(lines), []
        if not _DOCKERFILE.search(path.name):
            return False, _whole(text, path.resolve().parent, {path.resolve()}), []
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise wrong(source, f"can't be read: {error}", "name a lock, a requirements file, or a folder") from None
    asked, unread = _of_dockerfile(text)
    return False, "\n".join(asked), unread


def _whole(text: str, folder: Path, taken: set[Path]) -> str:
    """Requirements, with those of nested files in their place, each file once: any may name an editable.

    Raises OSError, UnicodeDecodeError.
    """

    def put(found: re.Match[str]) -> str:
        file = (folder / found[2]).resolve()
        if found[1] in ("-c", "--constraint"):
            return f"-c {file}"
        if file in taken:
            return ""
        taken.add(file)
        return _whole(file.read_text(), file.parent, taken)

    return _NESTED.sub(put, text)


def _of_dockerfile(text: str) -> tuple[list[str], list[str]]:
    """What its `pip install` lines name literally, and what else they say: variables, files of the context."""
    asked, unread = list[str](), list[str]()
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;", line):
            words = iter(found[1].split() if (found := _INSTALL.match(part)) else ())
            for word in words:
                try:
                    asked.append(str(Requirement(word.strip("\"'"))))
                except InvalidRequirement:
                    value = next(words, "") if _WITH_A_VALUE.fullmatch(word) else ""
                    unread += [f"{word} {value}".strip()] if value or not word.startswith("-") else []
    return asked, unread


def _with_fix(check: Check, environment: Mapping[str, Any], python: str) -> Check:
    """With versions to change, where requirements are not met and uv finds some that are; it keeps others that fit."""
    if check.key not in ("audit/requirements", "audit/contradiction") or check.outcome is not Outcome.FAULT:
        return check
    now = {str(one["name"]): str(one["version"]) for one in environment["distributions"]}
    held = [f"{name}=={version}" if name == "torch" else name for name, version in now.items()]
    try:
        fitting = uv.versions(held, Target(python=python, platform=_PLATFORM), preferred=now, run=uv.run, where="audit")
    except UserError:
        return check
    moved = [f"{name}=={version}" for name, version in fitting.items() if now.get(name, version) != version]
    # torchaudio 2.11 states no torch, so that what stands beside torch is more than metadata can promise
    fix = f"`pip install {' '.join(moved)}`: with the rest as it is, every stated requirement is met then"
    return replace(check, fix=fix) if moved else check


def _judgeable(claims: ClaimSet, laid: Laid, *, partial: bool) -> ClaimSet:
    """Without what this machine's own loader path says of packages that are for another one, and without what
    dependencies that are not there would give."""
    without = {"libraries", "symbols"} if partial else set()
    kept = [one for one in claims.claims if one.check not in without and (laid.here or one.subject != "rivals")]
    another = laid.python != "{}.{}".format(*sys.version_info)
    seen = (
        replace(one, expect={**one.expect, "any_python": another}) if one.check == "symbols" else one for one in kept
    )
    return replace(claims, claims=tuple(seen))
