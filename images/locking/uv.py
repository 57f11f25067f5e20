"""The resolver: uv's command line, fed with exact pins, answering with packages and the hashes of their wheels.

It sees package indexes and nothing else: no find-links folder, no extra index, no configuration file of this machine
can slip a file into a lock. The user's own default index, certificates and proxy settings are honoured.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from uv import find_uv_bin

from images.config.platforms import of_machine
from images.errors import Problem, UserError, command, failed, wrong
from images.locking.inputs import Package, Target

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Calls uv with arguments."""


class NoSolution(UserError):  # noqa: N818  # said as an outcome
    """The requirements contradict each other: no set of versions fits them all."""


class IndexUnreachable(UserError):  # noqa: N818  # said as an outcome
    """The index that alone has an image's torch does not answer here."""


INDEX_VARIABLES = r"UV_(?:DEFAULT_INDEX|INDEX_URL|INSECURE_HOST|HTTP_TIMEOUT|KEYRING_PROVIDER)|UV_INDEX_\w+_(?:USERNAME|PASSWORD)"
"""Variables of uv that say which index is the default one, and how it is reached: for locks, and in build steps.

UV_INDEX, UV_EXTRA_INDEX_URL and UV_FIND_LINKS are left out on purpose. Locks name public files by hash, so a further
place to look can only offer other builds of the same versions, such as a CPU torch.
"""
_PASSED = re.compile(
    r"PATH|HOME|TMPDIR|NETRC|XDG_\w+|SSL_CERT_(?:FILE|DIR)|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy"
    rf"|UV_(?:CACHE_DIR|HTTP_\w+|NATIVE_TLS|SYSTEM_CERTS)|{INDEX_VARIABLES}"
)


def with_index_of_pip(uv: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return variables of uv, whose default index is pip's where the user named one for pip alone.

    uv does not read pip's settings.
    """
    names_index = "UV_DEFAULT_INDEX" in uv or "UV_INDEX_URL" in uv
    index = env.get("PIP_INDEX_URL")
    if names_index or not index:
        return dict(uv)
    return {**uv, "UV_DEFAULT_INDEX": index}


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that uv gets. Raises UserError for a default index that is a folder."""
    passed = {name: value for name, value in env.items() if value and _PASSED.fullmatch(name)}
    passed = with_index_of_pip(passed, env)
    bundle = env.get("PIP_CERT") or env.get("REQUESTS_CA_BUNDLE")
    if bundle:
        passed.setdefault("SSL_CERT_FILE", bundle)

    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        # uv takes `NAME=URL`, too.
        address = re.sub(r"^[\w.-]+=", "", passed.get(name, "https:"))
        if urlsplit(address).scheme not in ("http", "https"):
            cause = "the default index is a folder of this machine: a lock names files that everybody can fetch"
            raise wrong(name, cause, f"unset it (and PIP_INDEX_URL) for `{command('lock')}`")
    return passed


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Call uv with the cleaned environment of this process. Raises UserError as `environment` does."""
    return subprocess.run(
        [find_uv_bin(), *arguments],
        env=environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def versions(
    requirements: Sequence[str],
    target: Target,
    *,
    preferred: Mapping[str, str],
    run: Runner,
    where: str,
) -> dict[str, str]:
    """Name -> version of everything that the requirements need. A preferred version is kept wherever it still fits.

    Raises UserError (`where` is its place): nothing fits, the index can't be reached.
    """
    # --refresh: uv trusts its copy of an index page for minutes, and people lock what has just been published.
    options = ("--refresh", "--no-annotate")
    text = _compile(
        requirements, target, options, "requirements.txt", run, where, preferred=preferred
    )
    rows = (line.partition("==") for line in text.splitlines() if "==" in line)
    return {canonicalize_name(name): version.split()[0] for name, _, version in rows}


def packages(
    requirements: Sequence[str],
    target: Target,
    *,
    chosen: Mapping[str, str],
    run: Runner,
    where: str,
    dependencies: bool = True,
) -> tuple[Package, ...]:
    """What the requirements need at the chosen versions, with hashes, by name.

    Raises UserError: as `versions`, and for a package that is no hashed wheel of an index (a local file, a checkout).
    """
    options = () if dependencies else ("--no-deps", "--refresh")
    text = _compile(requirements, target, options, "pylock.toml", run, where, chosen=chosen)
    found = (_package(row, target, where) for row in tomllib.loads(text).get("packages", []))
    return tuple(sorted(found, key=lambda package: package.name))


def addresses(exact: Sequence[str], target: Target, *, run: Runner, where: str) -> dict[str, str]:
    """sha256 -> URL of the files that exact pins mean. Raises UserError: as `packages`."""
    rows = tomllib.loads(_compile(exact, target, ("--no-deps",), "pylock.toml", run, where)).get(
        "packages", []
    )
    files = (
        file
        for row in rows
        for file in (*row.get("wheels", ()), *([row["sdist"]] if "sdist" in row else ()))
    )
    return {file["hashes"]["sha256"]: file["url"] for file in files if "url" in file}


def _compile(
    requirements: Sequence[str],
    target: Target,
    options: Sequence[str],
    output: str,
    run: Runner,
    where: str,
    *,
    preferred: Mapping[str, str] | None = None,
    chosen: Mapping[str, str] | None = None,
) -> str:
    """What `uv pip compile` writes into `output`, whose name says the format. `preferred`: versions that it finds there
    and keeps where they fit; `chosen`: the only ones that it may take."""
    with tempfile.TemporaryDirectory() as scratch:

        def file(name: str, lines: Iterable[str]) -> str:
            path = Path(scratch, name)
            path.write_text("".join(f"{line}\n" for line in lines))
            return str(path)

        arguments = [
            "pip",
            "compile",
            file("asked.in", requirements),
            "--quiet",
            "--no-config",
            "--no-header",
        ]
        arguments += [
            "--only-binary",
            ":all:",
            "--python",
            sys.executable,
            "--no-python-downloads",
            "--no-progress",
        ]
        arguments += [
            "--color",
            "never",
            "--python-version",
            target.python,
            "--python-platform",
            target.platform,
        ]
        arguments += (
            ["--index", target.index, "--index-strategy", "unsafe-best-match"]
            if target.index
            else []
        )
        arguments += [word for name in target.from_source for word in ("--no-binary", name)]
        arguments += ["--excludes", file("excluded.txt", target.excluded)]
        arguments += ["--overrides", file("overrides.txt", target.overrides)]
        exact = [f"{name}=={one}" for name, one in (chosen or {}).items()]
        arguments += ["--constraints", file("constraints.txt", exact)]
        if preferred:
            file(output, (f"{name}=={one}" for name, one in preferred.items()))
        answer = run([*arguments, *options, "-o", f"{scratch}/{output}"])
        if answer.returncode:
            raise _failure(answer.stderr, target, where)
        return Path(scratch, output).read_text()


def _package(row: Mapping[str, Any], target: Target, where: str) -> Package:
    name = str(canonicalize_name(row["name"]))
    wheels = (
        [row["sdist"]] if name in target.from_source and "sdist" in row else row.get("wheels", [])
    )
    shown = f"{name} {row.get('version', '')}".strip()
    hashes = tuple(
        sorted(
            {wheel["hashes"]["sha256"] for wheel in wheels if "sha256" in wheel.get("hashes", {})}
        )
    )
    if not hashes or len(hashes) < len(wheels):
        cause = f"the index gives no sha256 for {shown}: its files could not be checked when they are installed"
        raise wrong(where, cause, "resolve from an index that gives hashes (PyPI does)")
    return Package(name=name, version=row["version"], hashes=hashes)


def _failure(errors: str, target: Target, where: str) -> UserError:
    """uv's words as a cause and a next step. What it says besides the error (warnings, hints) is left out."""
    told = errors.partition("error: ")[2].partition("\nhint:")[0] or errors
    text = " ".join(re.sub(r"\n\s+cause:", ":", told).split())
    if source := re.search(r"(\S+) has no usable wheels", text):
        machine = of_machine(target.platform.partition("-")[0])
        wanted = f"Python {target.python} on Linux {machine.spoken if machine else target.platform}"
        cause = f"{source[1]} is published as source only: there is no wheel for {wanted}"
        then = "pin a version that has one, or name it in matrix.yaml: under `pure_python` if it is that, "
        then += "else under `optional`, and build with --wheelhouse"
        return wrong(where, cause, then)
    if "No solution found" in text:
        reason = text.partition("No solution found when resolving dependencies")[2].lstrip(": ")
        then = "move one of the pins that it names in matrix.yaml"
        return NoSolution(
            Problem(where=where, cause=f"no set of versions fits. uv says: {reason}", then=then)
        )
    if fetched := re.search(r"Failed to fetch: `?(https?://[^\s`]+?)`?(?:: |$)", text):
        host = urlsplit(fetched[1]).hostname
        cause = f"the package index {host} can't be reached: {text.rpartition(': ')[2]}"
        only = target.index and urlsplit(target.index).hostname == host
        other = "no other index has this torch" if only else "UV_DEFAULT_INDEX names another index"
        then = (
            f"`{command('lock', where)}` where {host} answers; {other}; HTTPS_PROXY names a proxy"
        )
        return (IndexUnreachable if only else UserError)(
            Problem(where=where, cause=cause, then=then), code=1
        )
    return failed(where, f"uv failed: {text}", "fix that, then lock again")
