"""Resolves packages with uv: exact pins go in, packages with the hashes of their wheels come out.

uv sees package indexes only, so that no find-links folder, extra index or configuration file of
this machine gets into a lock. The user's own default index, certificates and proxies are honoured.

A package that a private index alone has is bound to it as in a project of uv (`tool.uv.sources`,
and an index that is `explicit`): no other index is asked for it. uv does this for requirements that
it is given, and not for what packages require in turn, so such a package must be pinned.
"""

import json
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

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion
from uv import find_uv_bin

from images.config.names import Minor
from images.config.platforms import Platform, of_machine
from images.config.wheel_tags import supported_tags
from images.errors import Problem, UserError, command, failed, wrong
from images.locking import index_access, wheel_records
from images.locking.inputs import Package, Target

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Calls uv with arguments."""


class NoSolution(UserError):  # noqa: N818  # named after an outcome
    """The requirements contradict each other: no set of versions fits all of them."""


class IndexUnreachable(UserError):  # noqa: N818  # named after an outcome
    """The only index with an image's torch does not answer on this machine."""


class LoginRefused(UserError):  # noqa: N818  # named after an outcome
    """An index asks for a login that is not set, or refuses the one that is."""


INDEX_VARIABLES = r"UV_(?:DEFAULT_INDEX|INDEX_URL|INSECURE_HOST|HTTP_TIMEOUT|KEYRING_PROVIDER)"
"""Variables of uv for the default index, and for how it is reached. Locks and build steps get them.

UV_INDEX, UV_EXTRA_INDEX_URL and UV_FIND_LINKS are left out on purpose. Locks name public files by
hash, so a further index could only offer other builds of the same versions, such as a CPU torch.
"""
_PASSED = re.compile(
    r"PATH|HOME|TMPDIR|NETRC|XDG_\w+|SSL_CERT_(?:FILE|DIR)"
    r"|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy"
    rf"|UV_(?:CACHE_DIR|HTTP_\w+|NATIVE_TLS|SYSTEM_CERTS)|{INDEX_VARIABLES}"
    # The logins of private indexes. No build step gets these.
    r"|UV_INDEX_\w+_(?:USERNAME|PASSWORD)"
)


def with_index_of_pip(uv: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return variables of uv with pip's index as default index, if `env` sets one for pip only.

    uv does not read pip's settings.
    """
    names_index = "UV_DEFAULT_INDEX" in uv or "UV_INDEX_URL" in uv
    index = env.get("PIP_INDEX_URL")
    if names_index or not index:
        return dict(uv)
    return {**uv, "UV_DEFAULT_INDEX": index}


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that uv gets: the index, certificates and proxies.

    If uv's own variables for these are not set, pip's are taken. Raises UserError for a default
    index that is a folder, or whose address can't be read.
    """
    index_access.require_readable_addresses(env)
    # `_PASSED` matches the names of all variables that uv may see.
    passed = {name: value for name, value in env.items() if value and _PASSED.fullmatch(name)}
    passed = with_index_of_pip(passed, env)
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if name in passed:
            passed[name] = _require_server(name, passed[name])
    # uv does not read pip's variables for certificates, either.
    bundle = env.get("PIP_CERT") or env.get("REQUESTS_CA_BUNDLE")
    if bundle:
        passed.setdefault("SSL_CERT_FILE", bundle)
    return passed


def _require_server(variable: str, index: str) -> str:
    """Return the address of the index that a variable names. Raises UserError for a folder."""
    address = index_access.strip_index_name(index)
    if urlsplit(address).scheme not in ("http", "https"):
        cause = (
            "this variable names a folder of this machine, and a lock may only name files that "
            "everybody can fetch"
        )
        then = (
            f"unset the variable here (`unset {variable} PIP_INDEX_URL`), or set it to the address "
            f"of an index, then give `{command('lock')}` again"
        )
        raise wrong(variable, cause, then)
    return address


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Call uv with the variables that `environment` allows. Raises UserError as that does."""
    return subprocess.run(
        [find_uv_bin(), *arguments],
        env=environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def resolve_versions(
    requirements: Sequence[str],
    target: Target,
    *,
    preferred: Mapping[str, str],
    run: Runner,
    where: str,
) -> dict[str, str]:
    """Return the versions of everything that the requirements need, by canonical name.

    target: the Python and platform that they are for, and the indexes.
    preferred: package -> a version that is taken if it still fits.
    run: calls uv.
    where: what messages of errors begin with.

    Raises UserError if no versions fit, or if an index can't be reached.
    """
    # uv keeps pages of an index for minutes. But people lock packages that have just been
    # published, so let it ask again.
    options = ("--refresh", "--no-annotate")
    text = _compile(
        requirements, target, options, "requirements.txt", run, where, preferred=preferred
    )
    versions_by_name = {}
    for line in text.splitlines():
        # A line reads `torch==2.7.1`, and a marker may follow.
        if "==" in line:
            name, _, version = line.partition("==")
            versions_by_name[str(canonicalize_name(name))] = version.split()[0]
    return versions_by_name


def resolve_packages(
    requirements: Sequence[str],
    target: Target,
    *,
    chosen: Mapping[str, str],
    run: Runner,
    where: str,
    dependencies: bool = True,
) -> tuple[Package, ...]:
    """Resolve requirements with uv, and return the packages with their hashes, sorted by name.

    target: the Python and platform that they are for, and the indexes.
    chosen: package -> the only version of it that may be taken.
    run: calls uv.
    where: what messages of errors begin with.
    dependencies: whether what the packages require is resolved as well.

    Raises UserError as `resolve_versions` does, and for a package without a hashed wheel on an
    index (a local file, a checkout).
    """
    options: tuple[str, ...] = ()
    if not dependencies:
        # uv must read the pages of the index anew. With dependencies, `resolve_versions` has made
        # it do so just before.
        options = ("--no-deps", "--refresh")
    text = _compile(requirements, target, options, "pylock.toml", run, where, chosen=chosen)

    # Each table of the file is a package, with its version and its files.
    tables = tomllib.loads(text).get("packages", [])
    packages = [_parse_package(table, target, where) for table in tables]
    return tuple(sorted(packages, key=lambda package: package.name))


def find_urls(exact: Sequence[str], target: Target, *, run: Runner, where: str) -> dict[str, str]:
    """Return the files of these packages on their indexes: sha256 -> URL.

    exact: exact requirements, such as `torch==2.7.1`. What the packages require is left out.
    target: the Python and platform that they are for, and the indexes.
    run: calls uv.
    where: what messages of errors begin with.

    Raises UserError if uv fails, for example because an index can't be reached.
    """
    text = _compile(exact, target, ("--no-deps",), "pylock.toml", run, where)
    urls = {}
    for row in tomllib.loads(text).get("packages", []):
        files = [*row.get("wheels", ())]
        if "sdist" in row:
            files.append(row["sdist"])
        for file in files:
            # A local file has a path, and no URL.
            if "url" in file:
                urls[file["hashes"]["sha256"]] = file["url"]
    return urls


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
    """Resolve requirements with `uv pip compile`, and return the text of the file that it writes.

    target: the Python and platform that they are for, and the indexes.
    options: further options of uv.
    output: the name of the file, which decides its format: `requirements.txt` or `pylock.toml`.
    preferred: package -> a version that is taken if it fits.
    chosen: package -> the only version of it that may be taken.

    Raises UserError, with `where` as the place, if uv fails.
    """
    with tempfile.TemporaryDirectory() as scratch:

        def write(name: str, lines: Iterable[str]) -> str:
            """Write a file of these lines for uv, and return its path."""
            path = Path(scratch, name)
            path.write_text("".join(f"{line}\n" for line in lines))
            return str(path)

        constraints = [f"{name}=={version}" for name, version in (chosen or {}).items()]
        project = write("pyproject.toml", _project_lines(requirements, target))
        arguments = ["pip", "compile", project]
        arguments += ["--quiet", "--no-config", "--no-header", "--no-progress", "--color", "never"]
        # Take wheels only: a source archive would have to be built. The exceptions, packages that
        # are built from source on purpose, are named by `--no-binary` below.
        arguments += ["--only-binary", ":all:"]
        arguments += ["--python", sys.executable, "--no-python-downloads"]
        arguments += ["--python-version", target.python, "--python-platform", target.platform]
        if target.index:
            # `unsafe-best-match`: search both indexes for each package, and not only the first that
            # has
            # it.
            arguments += ["--index", target.index, "--index-strategy", "unsafe-best-match"]
        for name in target.from_source:
            arguments += ["--no-binary", name]
        arguments += ["--excludes", write("excluded.txt", target.excluded)]
        arguments += ["--overrides", write("overrides.txt", target.overrides)]
        arguments += ["--constraints", write("constraints.txt", constraints)]
        if preferred:
            # uv prefers the versions of an output file that is already there.
            write(output, (f"{name}=={version}" for name, version in preferred.items()))

        finished = run([*arguments, *options, "-o", f"{scratch}/{output}"])
        if finished.returncode:
            raise _explain_failure(finished.stderr, target, where)
        return Path(scratch, output).read_text()


def _project_lines(requirements: Sequence[str], target: Target) -> list[str]:
    """Return the lines of a pyproject.toml with requirements, and the private index of some.

    uv's messages contain the project's name: `this-image depends on torch==2.7.1`. `target` has the
    private indexes, and the packages that are taken from each of them only.
    """
    # A text is written in the same way in JSON and TOML.
    lines = [
        "[project]",
        'name = "this-image"',
        'version = "0"',
        f"dependencies = {json.dumps([*requirements])}",
    ]
    for name, url in target.indexes.items():
        # Only the packages under `sources` below are taken from it.
        lines += ["[[tool.uv.index]]", f"name = {json.dumps(name)}", f"url = {json.dumps(url)}"]
        lines.append("explicit = true")
    lines.append("[tool.uv.sources]")
    for package, index in target.private.items():
        lines.append(f"{package} = {{index = {json.dumps(index)}}}")
    return lines


def _parse_package(row: Mapping[str, Any], target: Target, where: str) -> Package:
    """Return a package of a pylock.toml (PEP 751), with the sha256 of each of its files.

    `row` is its table in that file. `target` says which packages are installed from source, and
    which are taken from a private index only. Raises UserError, with `where` as the place, if a
    file has no sha256, or if a private index gives a wheel whose name is not valid.
    """
    name = str(canonicalize_name(row["name"]))
    files = row.get("wheels", [])
    # A package that is installed from source is locked by its source archive.
    if name in target.from_source and "sdist" in row:
        files = [row["sdist"]]

    hashes = set()
    for file in files:
        hashes.add(file.get("hashes", {}).get("sha256"))
    # A package must have at least one file, and each file a hash.
    if not hashes or None in hashes:
        release = f"{name} {row.get('version', '')}".strip()
        raise _without_hashes(release, target.private.get(name), where)

    # A build gets the wheel of a private package as a file, so the lock must say which one.
    if name in target.private:
        best = _choose_wheel(files, target)
        wheel = wheel_records.file_of(best["url"])
        # The name becomes a word of a build step.
        is_plain = re.fullmatch(r"[\w.+!-]+\.whl", wheel, re.ASCII)
        if not is_plain or _tags_of_wheel(wheel) is None:
            cause = f"the index {target.private[name]} gives {wheel!r}, which is no wheel's name"
            then = (
                "publish the wheel under the name that its builder gave it, then "
                f"`{command('lock', where)}`"
            )
            raise wrong(where, cause, then)
        digest = best["hashes"]["sha256"]
        return Package(name=name, version=row["version"], hashes=(digest,), wheel=wheel)
    return Package(name=name, version=row["version"], hashes=tuple(sorted(hashes)))


def _without_hashes(release: str, private_index: str | None, where: str) -> UserError:
    """Return the error that an index gives no sha256 for the files of a release (`acme 1.4`).

    `private_index` is the index that the package comes from; None: the default one.
    """
    cause = (
        f"the index gives no sha256 for {release}: "
        "its files could not be checked when they are installed"
    )
    then = "set UV_DEFAULT_INDEX to an index that gives hashes (PyPI does)"
    if private_index is not None:
        then = f"let the index {private_index} give sha256 hashes"
    return wrong(where, cause, f"{then}, then `{command('lock', where)}`")


def _choose_wheel(files: Sequence[Mapping[str, Any]], target: Target) -> Mapping[str, Any]:
    """Return the wheel that an installer would take: the one with the best tag for the target.

    `files` are the wheels of a package in a pylock.toml, at least one. If no tag fits, the first
    wheel is returned. A wheel whose name is not valid is returned only if there is no other.
    """
    # The platform reads `x86_64-manylinux_2_36`: a machine and a glibc.
    machine, _, glibc = target.platform.partition("-manylinux_")
    tags = supported_tags(
        Minor.parse(target.python),
        Minor.parse(glibc.replace("_", ".")),
        of_machine(machine) or Platform.AMD64,
    )

    def rank(file: Mapping[str, Any]) -> int:
        """Return the place of a wheel's best tag in `tags`, which has the best tag first.

        A wheel without a tag for the target comes after all others that fit, and one whose name is
        not valid comes last.
        """
        tags_of_wheel = _tags_of_wheel(wheel_records.file_of(file["url"]))
        if tags_of_wheel is None:
            return len(tags) + 1
        return min((tags.index(tag) for tag in tags_of_wheel if tag in tags), default=len(tags))

    return min(files, key=rank)


def _tags_of_wheel(file_name: str) -> frozenset[Tag] | None:
    """Return the tags in the name of a wheel; None if no wheel is named so.

    uv is more lenient than the standard, and gives the file of `acme__train-1.4-py3-none-any.whl`.
    """
    try:
        return parse_wheel_filename(file_name)[3]
    except (InvalidWheelFilename, InvalidVersion):
        return None


def _change_before_locking(reason: str, target: Target) -> str:
    """Return what a user can change in matrix.yaml if no versions fit, as the start of a sentence.

    `reason` is uv's message. `target` has the indexes.
    """
    # `reserved` are packages of private indexes that the image does not pin. uv has looked for them
    # on the default index.
    unpinned = [name for name in target.reserved if re.search(rf"\b{name}\b", reason)]
    if unpinned:
        names = " and ".join(unpinned)
        return f"pin {names} in matrix.yaml, as only pins are taken from a private index"
    absent = re.search(r"(\S+) was not found in the package registry", reason)
    if absent:
        # An address without an index answers 404 for every name.
        default = index_access.find_default_index()
        check = f"see whether {default.url} ({default.variable}) is an index; " if default else ""
        return (
            f"{check}correct the name {absent[1]} in matrix.yaml, or, if an index of yours has it, "
            f"name that index under `indexes`; if no index has {absent[1]}, name it under "
            "`optional`, and put its wheel into a folder for `build --wheelhouse FOLDER`"
        )
    return "change one of the pins that uv names, in matrix.yaml"


def _explain_failure(errors: str, target: Target, where: str) -> UserError:
    """Return the error for what uv printed (`errors`), with a cause and a next step.

    The first kind of failure that fits counts: a package without wheels, an index that refuses the
    login, versions that contradict each other (NoSolution), a file that can't be fetched, others.
    """
    # uv prints its warnings, then for example this:
    #
    #     error: No solution found when resolving dependencies
    #       cause: Because pyyaml==3.10 has no usable wheels and you require pyyaml==3.10, we can
    #       conclude that your requirements are unsatisfiable.
    #
    #     hint: Wheels are required for `pyyaml` because ...
    #
    # `text` is the error with its causes, in one line: `No solution found ...: Because ...`.
    message = errors.partition("error: ")[2].partition("\nhint:")[0] or errors
    text = " ".join(re.sub(r"\n\s+cause:", ":", message).split())

    source_only = re.search(r"(\S+) has no usable wheels", text)
    if source_only:
        return _explain_source_only(source_only[1], target, where)
    # If an index refuses the login, uv says in the error that the package is not there. Only a
    # hint, which is not in `text`, tells the truth: `(https://HOST/simple/) ... (401 Unauthorized`.
    refusal = re.search(r"\((https?://[^\s)]+)\)[^\n]*\b(401|403)\b", errors)
    if refusal and "not found in the package registry" in text:
        return _explain_refusal(refusal[1], int(refusal[2]), target, where)
    if "No solution found" in text:
        reason = text.partition("No solution found when resolving dependencies")[2].lstrip(": ")
        cause = f"no set of versions fits. uv says: {_without_passwords(reason)}"
        then = f"{_change_before_locking(reason, target)}, then `{command('lock', where)}`"
        return NoSolution(Problem(where=where, cause=cause, then=then))

    # `Failed to fetch: https://HOST/simple/torch/: Connection refused (os error 111)`. The last of
    # the causes is the reason.
    unfetched = re.search(r"Failed to fetch: `?(https?://[^\s`]+?)`?(?:: |$)", text)
    if unfetched:
        reason = text.rpartition(": ")[2]
        status = re.search(r"\b(401 Unauthorized|403 Forbidden)\b", text)
        if status:
            number = int(status[1].partition(" ")[0])
            return _explain_refusal(unfetched[1], number, target, where)
        return _explain_unreachable(unfetched[1], _without_passwords(reason), target, where)
    # In place of a variable, uv names the option that it stands for, which nobody gave:
    # `for '--default-index <DEFAULT_INDEX>': ... For more information, try '--help'.`
    text = text.partition(" For more information, try")[0]
    text = re.sub(r"'--[a-z-]+ <([A-Z_]+)>'", r"the variable UV_\1", text)
    if "UV_DEFAULT_INDEX" not in os.environ:
        text = text.replace("UV_DEFAULT_INDEX", "PIP_INDEX_URL")
    then = f"correct what uv names here, then `{command('lock', where)}`"
    return failed(where, f"uv failed: {_without_passwords(text)}", then)


def _without_passwords(text: str) -> str:
    """Return a text of uv without the passwords of the variables that uv gets."""
    return index_access.redact(text, environment(os.environ).items())


def _host_and_port(url: str) -> str:
    """Return the host of an address, with its port if it has one, and without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _explain_refusal(url: str, status: int, target: Target, where: str) -> LoginRefused:
    """Return the error for an index that answered with HTTP 401 or 403 (`status`).

    `url` is what uv wanted to fetch. `target` has the private indexes, and `where` is the image's
    name.
    """
    refusal, then = index_access.describe_refusal(url, status, target.indexes)
    cause = f"the package index {_host_and_port(url)} {refusal}"
    then = f"{then}; then `{command('lock', where)}`"
    return LoginRefused(Problem(where=where, cause=cause, then=then), code=1)


def _explain_source_only(release: str, target: Target, where: str) -> UserError:
    """Return the error for a release (`acme==1.4`) of which an index has no wheel for the target.

    Only wheels can be locked: they are installed without running code of the package.
    """
    machine = of_machine(target.platform.partition("-")[0])
    platform = machine.spoken if machine else target.platform
    cause = (
        f"{release} is published as source only: "
        f"there is no wheel for Python {target.python} on Linux {platform}"
    )
    index = target.private.get(release.partition("==")[0])
    if index:
        then = f"publish a wheel of {release} on the index {index}, then `{command('lock', where)}`"
    else:
        then = (
            "pin a version that has a wheel; or, if the package has no compiled code, name it "
            "under `pure_python` in matrix.yaml; if it has, name it under `optional`, and build "
            "with --wheelhouse FOLDER, where a wheel of it lies that you compiled; in each case "
            f"lock again first: `{command('lock', where)}`"
        )
    return wrong(where, cause, then)


def _explain_unreachable(url: str, reason: str, target: Target, where: str) -> UserError:
    """Return the error for an index that does not answer; IndexUnreachable if no other will do.

    `url` is what uv wanted to fetch, `reason` why it failed. `where` is the image's name.
    """
    host = urlsplit(url).hostname
    place = _host_and_port(url)
    cause = f"the package index {place} can't be reached: {reason}"
    # An index beside the default one is set only for a torch that no other index has.
    is_only_index = target.index is not None and urlsplit(target.index).hostname == host
    private_hosts = {urlsplit(private_url).hostname for private_url in target.indexes.values()}
    if is_only_index:
        other = "no other index has this torch"
    elif host in private_hosts:
        other = "no other index is asked for its packages"
    else:
        other = "or set UV_DEFAULT_INDEX to another index"
    then = (
        f"give `{command('lock', where)}` again on a machine that reaches {place}, or set "
        f"HTTPS_PROXY if it is reached through a proxy; {other}"
    )
    error = IndexUnreachable if is_only_index else UserError
    return error(Problem(where=where, cause=cause, then=then), code=1)
