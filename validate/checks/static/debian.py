"""debian: check that Debian packages are wholly installed, and that their files are undamaged.

A full disk, a failed installation script or a COPY into /usr leaves packages broken. dpkg records
the state of each package, and the MD5 sum of each of its files. They are compared as by
`dpkg --verify`: that finds damage, and not what somebody changed on purpose and hid.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.checks.static.files import hash_all
from validate.claims import Claim, ImageKind
from validate.environment import debian
from validate.environment.image_paths import ImagePaths, is_plain_file, read_image_paths
from validate.judging import Finding, conclude, count_unlisted, failed, listed, passed, unproven

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_MOST_LISTED = 40
_WHOLE = "installed"
"""The last word of the state of a package that is wholly installed."""
_UNKNOWN = "unknown to dpkg's status"
_WITHOUT_SUMS = "without sums of its files"
"""States that dpkg has no word for."""
_REMOVED = ("config-files", "not-installed")
"""Last words of states in which a package has no files to compare: dpkg(1), PACKAGE STATES."""
_LEFT_OUT = tuple(
    f"/usr/share/{name}/" for name in ("doc", "man", "info", "locale", "lintian", "groff")
)
"""Documentation that slim images, Ubuntu's and ours leave out (dpkg's path-exclude)."""


class Expected(TypedDict):
    """What a claim about Debian's packages says."""

    image_kind: ImageKind


class _Measured(TypedDict):
    packages: int
    files: int
    """How many files were compared."""
    unfinished: dict[str, str]
    """Package that is not wholly installed -> its state."""
    altered: dict[str, str]
    """Path -> its package."""
    altered_count: int
    missing: dict[str, str]
    """Path -> its package."""
    missing_count: int
    edited: list[str]
    """Configuration files that somebody changed or removed."""


class Measured(_Measured, total=False):
    """What of Debian's packages is not as it was installed. Lists of files are cut."""

    unreadable: list[str]
    """Files that this user can't read, as inside a container that is not root's."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Compare the files of all Debian packages with dpkg's sums, once for all claims."""
    evidence = compare(debian.DATABASE, read_image_paths())
    for claim in claims:
        yield claim.subject, evidence


def compare(database: str, image: ImagePaths) -> Measured:
    """Return which Debian packages are not wholly installed, and which of their files differ.

    A file is compared with the MD5 sum that its package brought. `database` is dpkg's folder,
    /var/lib/dpkg. `image` has the mode, owner and size of every path.
    """
    states = debian.package_states(database)
    # All files of Debian packages, with their MD5 sums.
    owned = debian.read_package_files(database)
    plain_files = []
    for path in owned.md5:
        if path in image.facts and is_plain_file(image.facts[path]):
            plain_files.append(path)
    measured_sums = hash_all(plain_files, "md5")

    altered: dict[str, str] = {}
    missing: dict[str, str] = {}
    edited = []
    unreadable = find_unreadable(owned.md5, image)
    for path, expected_sum in sorted(owned.md5.items()):
        # Documentation may be missing: slim images leave it out.
        if measured_sums.get(path) == expected_sum or path.startswith(_LEFT_OUT):
            continue
        if path in unreadable:
            continue
        package = owned.packages.get(path, "")
        is_emptied = path in measured_sums and not image.facts[path].st_size
        # People edit configuration files, and remove them. An empty one is a sign of a full disk.
        if path in owned.configuration and not is_emptied:
            edited.append(path)
        elif path in image.facts:
            altered[path] = package
        else:
            missing[path] = package

    # Lists are cut. Counts are not.
    return {
        "packages": len(states),
        "files": len(measured_sums),
        "unfinished": find_unfinished(database, states, owned, image),
        "altered": first_items(altered),
        "altered_count": len(altered),
        "missing": first_items(missing),
        "missing_count": len(missing),
        "edited": edited[:_MOST_LISTED],
        "unreadable": unreadable[:_MOST_LISTED],
    }


def find_unreadable(paths: Iterable[str], image: ImagePaths) -> list[str]:
    """Return the paths that the user of this process can't read, or not look for.

    A path can't be looked for if it lies below a folder that can't be listed (`image.unreadable`).
    """
    closed_folders = []
    for folder in image.unreadable:
        closed_folders.append(f"{folder}/")
    prefixes = tuple(closed_folders)

    unreadable = []
    for path in paths:
        if path.startswith(prefixes):
            unreadable.append(path)
            continue
        # Links are not read, because their target may be missing.
        facts = image.facts.get(path)
        is_file = facts is not None and is_plain_file(facts)
        if is_file and not os.access(path, os.R_OK):
            unreadable.append(path)
    return unreadable


def find_unfinished(
    database: str, states: Mapping[str, str], owned: debian.PackageFiles, image: ImagePaths
) -> dict[str, str]:
    """Return the state of each package that is not wholly installed, by its name.

    `database` is dpkg's folder, and `states` is package -> the state that dpkg's `status` gives it,
    such as `install ok installed`. `owned` are the files of all packages, `image` the paths that
    exist.
    """
    unfinished = {name: state for name, state in states.items() if is_unfinished(state)}
    # Packages of which dpkg has a list of files, but no state: `status` may have been cut short.
    for name in debian.listed_packages(database) - states.keys():
        unfinished[name] = _UNKNOWN
    # Packages whose files can't be compared: a full disk may have emptied their files of sums.
    for name in find_packages_without_sums(owned, image):
        unfinished[name] = _WITHOUT_SUMS
    return dict(sorted(unfinished.items()))


def find_packages_without_sums(owned: debian.PackageFiles, image: ImagePaths) -> set[str]:
    """Return the packages that have files in the image, and no MD5 sum of any of them.

    That is a fault, because dpkg itself makes the sums that a package does not bring.
    """
    with_files = set()
    with_sums = set()
    for path, package in owned.packages.items():
        # Sums of configuration files are elsewhere: in dpkg's `status`.
        if path in owned.configuration:
            continue
        if path in owned.md5:
            with_sums.add(package)
        elif path in image.facts and is_plain_file(image.facts[path]):
            with_files.add(package)
    return with_files - with_sums


def is_unfinished(state: str) -> bool:
    """Return whether dpkg left a package in this state half-way: `install ok half-configured`.

    A state has three words: what dpkg is to do with the package, an error flag, and what it is now.
    A state of another form counts as half-way.
    """
    if state.count(" ") != 2:
        return True
    _, flag, status = state.split()
    return flag != "ok" or status not in (_WHOLE, *_REMOVED)


def first_items(package_by_path: Mapping[str, str]) -> dict[str, str]:
    """Return the first paths, as many as evidence lists, with their packages."""
    return dict(list(package_by_path.items())[:_MOST_LISTED])


def judge(_subject: str, expect: Expected, evidence: Measured) -> Finding:
    """Fail where a Debian package is not wholly installed, or one of its files is damaged or gone.

    An image on a custom base may have no Debian packages. Edited configuration files are reported
    in the reason. UNPROVEN: some files can't be read, and the others show no fault.
    """
    if not evidence["packages"]:
        # If dpkg has sums of files, there were packages, and its `status` was lost or emptied.
        has_sums = bool(evidence["files"] or evidence["missing_count"])
        if expect["image_kind"] == ImageKind.ON_CUSTOM_BASE and not has_sums:
            return passed("its base has no Debian packages")
        return failed(
            "dpkg's database (/var/lib/dpkg/status) has no package",
            "take the step that removes or empties /var/lib/dpkg out of your Dockerfile, or of "
            "that of the base image, and build the image again",
        )

    faults = []

    # Packages come first, because they often explain what is wrong with files.
    for name, state in evidence["unfinished"].items():
        faults.append(f"Debian's package {name} is not wholly installed (its state is `{state}`)")
    for path, package in evidence["altered"].items():
        faults.append(f"{path} is not as Debian's package {package} has it")
    faults += count_unlisted(evidence, "altered", "files are not as Debian's packages have them")
    for path, package in evidence["missing"].items():
        faults.append(f"{path} of Debian's package {package} is missing")
    faults += count_unlisted(evidence, "missing", "files of Debian's packages are missing")

    good = f"{evidence['packages']} Debian packages are wholly installed"
    good += f", and {evidence['files']} files are as they brought them"
    edited = evidence["edited"]
    if edited:
        good += f"; edited configuration: {listed(edited)}"

    # Evidence from before 2026-11-29 does not have this key.
    unreadable = evidence.get("unreadable")
    if unreadable and not faults:
        return unproven(
            f"{good}, but truetag ran as a user who may not read {listed(unreadable)}, so these "
            "files were not compared",
            "validate again as root (inside a container: `docker run --user 0`), or let everybody "
            "read these files (`chmod a+rX`, also for the folders above them) in the step that "
            "brings them, and build the image again",
        )
    return conclude(faults, good)


CLAIMS = {"debian": judge, "base/debian": judge}
_NEXT_STEP = (
    "add `RUN apt-get update && apt-get install -y --reinstall PACKAGE` to {place}, below the last "
    "step that changes these files, with the package that is named above for PACKAGE (if a state "
    "is named, too, `dpkg --configure -a` goes before `apt-get install`), and build {image} with "
    "enough free disk"
)
NEXT_STEPS = {
    "debian": _NEXT_STEP.format(
        place="your Dockerfile, or to that of the base image", image="the image again"
    ),
    "base/debian": _NEXT_STEP.format(
        place="the Dockerfile from which you build the base image",
        image="the base image again, then this image on it,",
    ),
}
