"""Make the claims for a derived image: one that somebody built on top of one of our images.

A derived image is built by somebody's Dockerfile with `FROM` one of our images, its base image. It
is held to the claims of its base image, loosened where people rightly change things, and to claims
about what it adds. What it changes on purpose it may declare in a file, DECLARATION.

The host and the copy of the suite inside an image both make the claims here, so that they come to
the same verdict. Nothing here reads a file or runs a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from validate.checks.static.pins import AdditionsExpect, KnownConflict, KnownFailure
from validate.claims import STANDS_ON, Claim, ClaimSet, ImageKind, Tier

DECLARATION = "/opt/truetag/derived.toml"
"""The file in a derived image that declares what it changes on purpose."""
RULES = "derived.json"
"""The file with DerivedRules, beside the claims in an image."""

_OUR_LABELS = "dev.truetag."
"""How the names of our own labels begin."""
_USERS_FILES = "/workspace/*"
"""The pattern of leftovers that our own images must not have, and where users put their files."""
_ADDITIONS = "*/.cache/venvs/*"
"""Where `pip install` of a user other than root puts packages (templates/additions/python.sh)."""
_REPORTED_LEFTOVERS = ("/var/cache/apt/*",)
"""Leftovers that are reported and no fault: Debian's official base image cleans them by itself
(docker-clean), and ours does not."""
_NOT_REQUIRED = ("image/size", "pins/lock")
"""Claims that a derived image need not keep. They are measured and shown."""
_REPLACED = ("hygiene/home",)
"""Claims of the base image that `added/folders` replaces: a derived image has one user, its own."""
ADDITIONS_CLAIM = "pins/additions"
LOCK_CLAIM = "pins/lock"
"""The claim whose probe lists every installed package, beside the versions of the lock."""
_TIERS_OF_COMMANDS = (Tier.CPU, Tier.GPU)
"""The tiers that a command of a derived image may ask for."""
_COMMAND_SECONDS = 600


class DerivedRules(TypedDict):
    """What the matrix and the facts say about images that stand on one of ours. JSON values."""

    failing: list[KnownFailure]
    """Packages and variables that are known to fail in this base image."""
    conflicts: list[KnownConflict]
    """Releases of packages that fail together in any image."""
    state: dict[str, list[Any]]
    """Expression -> the values that it may have after `import torch`."""
    allowed_variables: list[str]
    """Patterns of variables that a derived image may set although ours must not have them."""
    harmless_variables: list[str]
    """Patterns of variables that are known to change nothing that was validated."""
    folder_variables: list[str]
    """Variables that name folders to which programs write."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program of a derived image that must end with 0."""

    run: str
    """A line for `sh -c`, in the image's working folder."""
    tier: Tier = Tier.CPU
    seconds: int = _COMMAND_SECONDS
    """How long it may take."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a derived image says that it changes on purpose."""

    replaces: Mapping[str, str] = field(default_factory=dict)
    """Package of the base image -> the version that the derived image has of it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variable -> the value that it is set to on purpose."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Name -> a command that must end with 0."""


NOTHING_DECLARED = Declaration()


def parse_declaration(text: str) -> Declaration:
    """Read the TOML in which a derived image declares what it changes on purpose.

    `text` is the content of that file, DECLARATION; an empty one declares nothing. Raises
    ValueError with a sentence that says what is wrong.

        [replaces]
        transformers = "5.24.0"

        [variables]
        HF_ENDPOINT = "https://hf.example.com"

        [commands.smoke]
        run = "python /workspace/smoke.py"
        tier = "gpu"
    """
    try:
        import tomllib
    except ImportError as error:
        raise ValueError("reading it takes Python 3.11 or newer") from error

    tables = tomllib.loads(text)
    unknown = sorted(tables.keys() - {"replaces", "variables", "commands"})
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no table of this file: "
            "it has [replaces], [variables] and [commands]"
        )
    commands = {}
    for name, table in _table(tables, "commands").items():
        commands[name] = _parse_command(name, table)
    return Declaration(
        replaces=_texts(tables, "replaces"),
        variables=_texts(tables, "variables"),
        commands=commands,
    )


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of a declaration, empty if it has none.

    Raises ValueError if something else has this name.
    """
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"[{name}] must be a table")
    return table


def _texts(tables: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return a table of a declaration whose values must all be text; empty if there is none.

    tables: the whole declaration, as TOML is parsed.
    name: the table's, such as `replaces`.

    Raises ValueError if a value is not text: TOML reads `transformers = 4.57` as a number.
    """
    texts = {}
    table = _table(tables, name)
    for key, value in table.items():
        if not isinstance(value, str):
            # The line as it must be written: the value in quotes.
            line = f'{key} = "{value}"'
            cause = f"[{name}] {key} must be a text: {line}"
            raise ValueError(cause)
        texts[key] = value
    return texts


def _parse_command(name: str, table: object) -> Command:
    """Return a command that a derived image declares, and that must end with status 0.

    name: the command's.
    table: its keys in TOML. `run` is a line for the shell. `tier` says whether it needs a GPU:
        `gpu` or `cpu`, the default. `seconds` is its time limit.

    Raises ValueError if the table does not describe a command.
    """
    where = f"[commands.{name}]"
    if not isinstance(table, Mapping):
        raise ValueError(f'{where} needs a line `run = "COMMAND"`')
    for key in table:
        if key not in ("run", "tier", "seconds"):
            raise ValueError(f"{where} has no key {key!r}: it has run, tier and seconds")

    # The line for the shell is the only key that a command must have.
    run = table.get("run")
    if not isinstance(run, str):
        raise ValueError(f'{where} needs a line `run = "COMMAND"`')

    tier = table.get("tier", Tier.CPU)
    if tier not in _TIERS_OF_COMMANDS:
        cause = f'tier is {tier!r}: it must be "cpu" or "gpu"'
        raise ValueError(f"{where} {cause}")

    seconds = table.get("seconds", _COMMAND_SECONDS)
    # `isinstance(seconds, int)` would take `true` for a number, too.
    is_whole_number = type(seconds) is int
    if not is_whole_number or seconds < 1:
        cause = f"seconds is {seconds!r}: it must be a whole number above 0"
        raise ValueError(f"{where} {cause}")

    return Command(run=run, tier=Tier(tier), seconds=seconds)


def derived_claims(
    base: ClaimSet, rules: DerivedRules, declared: Declaration = NOTHING_DECLARED
) -> ClaimSet:
    """Return the claims (what an image must have) that a derived image is held to.

    They are the claims of its base image, loosened where a derived image may differ; claims about
    what it adds; one about the state after `import torch`; and its own commands.

    base: the claims of the base image.
    rules: what is known about images on this base, such as packages that fail in it.
    declared: what this image says that it changes on purpose.
    """
    # No addition may move these: the packages of the base image's lock, and its pins.
    pinned = sorted(base_versions(base))
    claims = []
    for base_claim in base.claims:
        if base_claim.key not in _REPLACED:
            claims.append(_loosened(base_claim, pinned, rules, declared))

    additions: AdditionsExpect = {
        "pinned": pinned,
        "known": rules["failing"],
        "conflicts": rules["conflicts"],
    }
    # The claim that nothing that was added is known to fail. It is made from the claim on the lock,
    # because both need a list of the installed packages.
    for base_claim in base.claims:
        if base_claim.key == LOCK_CLAIM:
            additions_claim = replace(
                base_claim,
                subject="additions",
                statement="nothing that was added is known to fail in this image",
                expect={**additions},
            )
            claims.append(additions_claim)
    claims += _claims_about_additions(base, rules)
    claims += _claims_about_commands(declared)
    return ClaimSet(image=f"{STANDS_ON}{base.image}", claims=tuple(claims))


def _claims_about_additions(base: ClaimSet, rules: DerivedRules) -> list[Claim]:
    """Return the claims about everything that a user added to one of our images.

    Claims are statements that a check (`probe`) tests. These are about folders that must be
    writable, about the added packages, and about the state after `import torch`.
    """
    versions = base_versions(base)
    return [
        Claim(
            check="added",
            subject="folders",
            tier=Tier.STATIC,
            probe="static.added",
            statement="the image's user can write to the working folder, the home and the caches",
            expect={"variables": rules["folder_variables"]},
        ),
        Claim(
            check="added",
            subject="imports",
            tier=Tier.CPU,
            probe="cpu.added",
            statement="every package that was added or moved can be imported",
            expect={"base": versions},
        ),
        Claim(
            check="added",
            subject="requirements",
            tier=Tier.CPU,
            probe="cpu.added",
            statement="every package that was added or moved has what it requires",
            expect={"base": versions},
        ),
        Claim(
            check="state",
            subject="after-import",
            tier=Tier.CPU,
            probe="cpu.state",
            statement="after `import torch`, Python and torch are as in the base image",
            expect={"state": rules["state"]},
        ),
    ]


def _claims_about_commands(declared: Declaration) -> list[Claim]:
    """Return a claim for each command that a user's image declares: that it ends with status 0.

    A command declares where it is run: with a GPU or without (its tier, `gpu` or `cpu`).
    """
    claims = []
    for name, command in declared.commands.items():
        claims.append(
            Claim(
                check="command",
                subject=name,
                tier=command.tier,
                probe=f"{command.tier}.command",
                statement=f"`{command.run}` ends with 0",
                expect={"run": command.run, "seconds": command.seconds},
            )
        )
    return claims


def base_versions(base: ClaimSet) -> dict[str, str]:
    """Return the packages of a base image and their versions, as its claims state them.

    They are sorted by name. The version of an optional package may be empty: not known.
    """
    versions: dict[str, str] = {}
    # The claim on the lock has the versions of all packages in it.
    for base_claim in base.claims:
        if base_claim.key == LOCK_CLAIM:
            versions.update(base_claim.expect["versions"])

    # Wheels that no index has are in no lock: their claims on pins name them.
    for base_claim in base.claims:
        if base_claim.check != "pins" or base_claim.key == LOCK_CLAIM:
            continue
        version = base_claim.expect.get("version", "")
        versions.setdefault(base_claim.subject, version)
    return dict(sorted(versions.items()))


def _loosened(
    base_claim: Claim, pinned: list[str], rules: DerivedRules, declared: Declaration
) -> Claim:
    """Return a claim of the base image, loosened as far as people rightly change things.

    A user may set another entrypoint, for example, or add files and packages. What a claim is about
    shows in the keys of `expect`, which its judge compares with. A claim that has none of the keys
    below stays as it is.

    pinned: the packages whose versions no addition may change.
    rules: what is known about derived images, such as the variables that they may set.
    declared: what this image says that it changes on purpose.
    """
    expect = dict(base_claim.expect)
    # Tell the judge that this is a derived image. `image/settings` then accepts another user and
    # entrypoint, and `origin/layers` accepts layers on top of ours.
    if "image_kind" in expect:
        expect["image_kind"] = ImageKind.DERIVED
    if "is_derived" in expect:
        expect["is_derived"] = True

    # Variables that a user may set although our own images must not have them.
    if "denied" in expect:
        expect["allowed"] = rules["allowed_variables"]
        expect["declared"] = dict(declared.variables)
        expect["harmless"] = rules["harmless_variables"]

    # Leftovers are files that an image must not have: pattern -> what they are. Users may have
    # files of their own in /workspace, and packages that they added with pip.
    if "leftovers" in expect:
        # The longest pattern that matches a file counts.
        leftovers = {_ADDITIONS: "packages that the image's user added", **expect["leftovers"]}
        leftovers.pop(_USERS_FILES, None)
        expect["leftovers"] = leftovers
        # Leftovers that match these patterns are reported, but are not a fault.
        expect["told"] = [_ADDITIONS, *_REPORTED_LEFTOVERS]

    # Only our own labels must be true. A user may set others, such as the title.
    if "labels" in expect:
        labels = {}
        for name, value in expect["labels"].items():
            if name.startswith(_OUR_LABELS):
                labels[name] = value
        expect["labels"] = labels

    expect |= _changes_about_packages(base_claim, pinned, declared.replaces)
    required = base_claim.required and base_claim.key not in _NOT_REQUIRED
    return replace(base_claim, expect=expect, required=required)


def _changes_about_packages(
    base_claim: Claim, pinned: list[str], replaced: Mapping[str, str]
) -> dict[str, Any]:
    """Return the keys of `expect` that change because a derived image may have other packages.

    pinned: the packages of the base image, whose versions no addition may change.
    replaced: package -> the version that this image declares to have instead.
    """
    changed: dict[str, Any] = {}
    # A package that is replaced on purpose is held to the version that was declared.
    if base_claim.check == "pins" and base_claim.subject in replaced:
        changed["version"] = replaced[base_claim.subject]

    # The claim on the lock is `closed` in our own image: no other package may be installed.
    if "closed" in base_claim.expect:
        versions = base_claim.expect["versions"]
        changed["closed"] = False
        changed["versions"] = {name: replaced.get(name, versions[name]) for name in versions}

    # If a library lacks another one, or a module is hidden, that is a fault only in packages of the
    # base image. The judges need to know which these are.
    if base_claim.check == "libraries":
        changed["pinned"] = pinned
    if base_claim.check == "lookup":
        changed["packages"] = pinned
    return changed
