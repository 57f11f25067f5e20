"""debian/packages: a full disk, a failed installation script or a COPY into /usr leaves Debian packages broken.

dpkg knows each package's state, and the MD5 sum of each of its files. The sums are dpkg's own: they find damage, as
`dpkg --verify` does, and nobody's intent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.checks.static.files import hashes
from validate.claims import Claim, ImageKind
from validate.environment import debian
from validate.environment.image_paths import ImagePaths, is_plain_file, read_image_paths
from validate.judging import Finding, conclude, count_unlisted, failed, listed, passed

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_MOST_LISTED = 40
_WHOLE = "installed"
_UNKNOWN = "unknown to dpkg's status"
_WITHOUT_SUMS = "without sums of its files"
_REMOVED = ("config-files", "not-installed")
"""Last words of states in which a package has no files to compare: dpkg(1), PACKAGE STATES."""
_LEFT_OUT = tuple(
    f"/usr/share/{name}/" for name in ("doc", "man", "info", "locale", "lintian", "groff")
)
"""Documentation that slim images, Ubuntu's and ours leave out (dpkg's path-exclude)."""


class Expected(TypedDict):
    """What a claim about Debian's packages says."""

    image_kind: ImageKind


class Measured(TypedDict):
    """What is broken of Debian's packages."""

    packages: int
    files: int
    """How many were compared."""
    unfinished: dict[str, str]
    """Package -> its state."""
    altered: dict[str, str]
    """Path -> its package."""
    altered_count: int
    missing: dict[str, str]
    """Path -> its package."""
    missing_count: int
    edited: list[str]
    """Configuration files that somebody changed or removed."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Compare every file that dpkg has a sum of, and read the state of every package."""
    evidence = compare(debian.DATABASE, read_image_paths())
    for claim in claims:
        yield claim.subject, evidence


def compare(database: str, image: ImagePaths) -> Measured:
    """Return what of the packages in a database of dpkg is not as it was installed."""
    states = debian.package_states(database)
    owned = debian.read_package_files(database)

    plain = [path for path in owned.md5 if path in image.facts and is_plain_file(image.facts[path])]
    sums = hashes(plain, "md5")
    altered: dict[str, str] = {}
    missing: dict[str, str] = {}
    edited = []
    for path, expected in sorted(owned.md5.items()):
        if sums.get(path) == expected or path.startswith(_LEFT_OUT):
            continue
        package = owned.packages.get(path, "")
        is_emptied = path in sums and not image.facts[path].st_size
        # People edit configuration files and remove them. Nobody empties one: a full disk does.
        if path in owned.configuration and not is_emptied:
            edited.append(path)
        elif path in image.facts:
            altered[path] = package
        else:
            missing[path] = package

    unfinished = {name: state for name, state in states.items() if is_unfinished(state)}
    # What a `status` that was cut short no longer has.
    unfinished |= dict.fromkeys(debian.listed_packages(database) - states.keys(), _UNKNOWN)
    # Else nothing would be compared where a full disk emptied the sums.
    unfinished |= dict.fromkeys(find_packages_without_sums(owned, image), _WITHOUT_SUMS)

    return {
        "packages": len(states),
        "files": len(sums),
        "unfinished": dict(sorted(unfinished.items())),
        "altered": _first(altered),
        "altered_count": len(altered),
        "missing": _first(missing),
        "missing_count": len(missing),
        "edited": edited[:_MOST_LISTED],
    }


def find_packages_without_sums(owned: debian.PackageFiles, image: ImagePaths) -> set[str]:
    """Return the packages with files none of which has a sum. dpkg makes the sums that a package does not bring."""
    with_files = set()
    with_sums = set()
    for path, package in owned.packages.items():
        # Sums of configuration files are in dpkg's `status`.
        if (
            path not in image.facts
            or path in owned.configuration
            or not is_plain_file(image.facts[path])
        ):
            continue
        with_files.add(package)
        if path in owned.md5:
            with_sums.add(package)
    return with_files - with_sums


def is_unfinished(state: str) -> bool:
    """Return whether a state is one in which dpkg left a package half-way: unpacked, half-configured and others."""
    _, flag, status = state.split() if state.count(" ") == 2 else ("", "", state)
    return flag != "ok" or status not in (_WHOLE, *_REMOVED)


def _first(owners: Mapping[str, str]) -> dict[str, str]:
    return dict(list(owners.items())[:_MOST_LISTED])


def judge(_subject: str, expect: Expected, evidence: Measured) -> Finding:
    """Name each package that is not wholly installed, and each of its files that is damaged or gone."""
    if not evidence["packages"]:
        # Files without a package: dpkg's `status` was lost or emptied.
        is_without_debian = not evidence["files"] and not evidence["missing_count"]
        if expect["image_kind"] == ImageKind.ON_CUSTOM_BASE and is_without_debian:
            return passed("its base has no Debian packages")
        return failed("dpkg's database has no package")

    faults = [
        f"Debian's {name} is in the state `{state}`"
        for name, state in evidence["unfinished"].items()
    ]
    faults += [
        f"{path} is not as Debian's {package} has it"
        for path, package in evidence["altered"].items()
    ]
    faults += count_unlisted(evidence, "altered", "files are not as Debian's packages have them")
    faults += [
        f"{path} of Debian's {package} is missing" for path, package in evidence["missing"].items()
    ]
    faults += count_unlisted(evidence, "missing", "files of Debian's packages are missing")

    good = f"{evidence['packages']} Debian packages are wholly installed"
    good += f", and {evidence['files']} files are as they brought them"
    if evidence["edited"]:
        good += f"; edited configuration: {listed(evidence['edited'])}"
    return conclude(faults, good)


CLAIMS = {"debian": judge}
