"""Contracts of the static tier: S1 to S8; device_code.py has S5's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from validate.binaries.linking import Unreadable

Reasons = dict[str, str]
"""Pattern -> why."""


# ---- S1


class _TorchCuda(TypedDict, total=False):
    cuda: str
    """Of torch alone: the CUDA that it must be built for."""


class _OfMachine(TypedDict, total=False):
    machine: str
    """In the kernel's words; absent: x86_64."""


class PinExpect(_TorchCuda, _OfMachine):
    version: str
    locals: list[str]
    """Local versions that name this wheel."""
    modules: list[str]
    python: str
    shares: list[str]
    """Distributions that put files into its package by design."""


class InstalledDistribution(TypedDict):
    version: str
    location: str
    tags: list[str]
    has_record: bool


class _ModuleDetails(TypedDict, total=False):
    error: str
    namespace: list[str]
    through: str
    """The entry of sys.path that supplied it."""


class Module(_ModuleDetails):
    file: str | None
    owners: list[str]
    providers: list[str]


class TorchVersion(TypedDict):
    """torch/version.py, read as text."""

    file: str | None
    __version__: str | None
    cuda: str | None


class _OfTorch(TypedDict, total=False):
    torch: TorchVersion


class PinEvidence(_OfTorch, _OfMachine):
    python: str
    glibc: str
    installed: list[InstalledDistribution]
    modules: dict[str, Module]


class LockExpect(TypedDict):
    versions: dict[str, str]
    closed: bool
    """Nothing else may be installed."""


class LockEvidence(TypedDict):
    installed: dict[str, list[str]]


# ---- S2


class _FilesAside(TypedDict, total=False):
    aside: list[str]
    """Folders of sys.path that no wheel filled: their files are a package manager's, and not compared."""


class FilesExpect(_FilesAside):
    unowned: Reasons
    """Files that may lie beside packages though no distribution lists them."""


class WrongFile(TypedDict):
    path: str
    owners: dict[str, str]
    """Distribution -> altered or missing."""


class FileInConflict(TypedDict):
    path: str
    owners: list[str]
    holds: list[str]
    """Whose content it has."""


class WithoutRecord(TypedDict):
    name: str
    location: str


class FilesEvidence(TypedDict):
    distributions: int
    files: int
    bytes: int
    wrong: list[WrongFile]
    wrong_count: int
    in_conflict: list[FileInConflict]
    in_conflict_count: int
    shared_alike_count: int
    unowned: list[str]
    unowned_count: int
    without_record: list[WithoutRecord]


# ---- S3


class LinkException(TypedDict):
    path: str
    names: list[str]
    reason: str


class LibrariesExpect(TypedDict):
    of: str
    """`environment` or `toolkit`."""
    home: str
    cuda_libraries: dict[str, str | None]
    """Stem -> SONAME version of this CUDA; None: the version says nothing of it."""
    host: list[str]
    """Libraries that the host injects."""
    other_platforms: list[str]
    exceptions: list[LinkException]


class Missing(TypedDict):
    path: str
    name: str


class Held(TypedDict):
    path: str
    owners: list[str]


class Linked(TypedDict):
    path: str
    owners: list[str]
    missing: list[str]
    assumed: dict[str, str]
    """Taken to be loaded by the distribution itself: name -> file."""
    needs_cuda: list[str]


class SecondOwner(TypedDict):
    name: str
    path: str
    owners: list[str]
    other: str


class ToolkitLinks(TypedDict):
    """What is measured of a toolkit."""

    files: int
    unreadable: list[Unreadable]
    linked: list[Linked]


class LibrariesEvidence(ToolkitLinks, total=False):
    """The rest is measured of the environment alone."""

    torch_misses: list[Missing]
    torch_holds: dict[str, Held]
    second_owners: list[SecondOwner]
    provided: list[tuple[str, str, Sequence[str]]]
    """SONAME, path, owners of each CUDA library."""


# ---- S4


class SymbolException(TypedDict):
    path: str
    symbols: list[str]
    reason: str


class SymbolsExpect(TypedDict):
    host: list[str]
    exceptions: list[SymbolException]


class LackingSymbols(TypedDict):
    path: str
    owners: list[str]
    undefined: list[str]
    undefined_count: int
    versions: list[tuple[str, str, str]]
    """Version, library, the file that does not define it."""


class SymbolsEvidence(TypedDict):
    files: int
    checked: int
    symbols: int
    unreadable: list[Unreadable]
    lacking: list[LackingSymbols]
    lacking_count: int


# ---- S6


class ToolkitExpect(TypedDict):
    home: str
    version: str
    parts: list[str]


class _PartDetails(TypedDict, total=False):
    absent: list[str]
    error: str
    version: str | None
    minor: str | None
    sonames: dict[str, str | None]


class ToolkitPart(_PartDetails):
    files: list[str]


LoaderFolder = TypedDict("LoaderFolder", {"folder": str, "real": str, "from": str, "exists": bool})


class DriverLibrary(TypedDict):
    path: str
    real: str


class ToolkitEvidence(TypedDict):
    home_exists: bool
    real_home: str
    parts: dict[str, ToolkitPart]
    variables: dict[str, str | None]
    default_link: str | None
    programs_on_path: dict[str, str | None]
    torch: TorchVersion
    loader_folders: list[LoaderFolder]
    driver_libraries: list[DriverLibrary]


# ---- S7


class EnvironmentExpect(TypedDict):
    required: dict[str, str]
    denied: Reasons
    start_files: Reasons


class ShellAssignment(TypedDict):
    file: str
    name: str
    value: str


class StartCode(TypedDict):
    file: str
    owners: list[str]
    of_debian: bool
    does_nothing: bool


class Start(TypedDict):
    flags: dict[str, int]
    changes: dict[str, str]
    code: list[StartCode]


class EnvironmentEvidence(TypedDict):
    required: dict[str, str | None]
    denied: dict[str, str]
    in_files: list[ShellAssignment]
    settings_files: dict[str, list[str]]
    start: Start


# ---- S8


class _OfArchitecture(TypedDict, total=False):
    architecture: str
    """In Docker's words."""


class LabelsExpect(_OfArchitecture):
    labels: dict[str, str]


class SizeExpect(TypedDict):
    bytes: int


class SettingsExpect(TypedDict):
    capabilities: list[str]
    """What the container runtime must inject of the driver."""
    entrypoint: list[str]


class HistoryExpect(TypedDict):
    """Nothing."""


class HostSecret(TypedDict):
    where: str
    kind: str


class HostImageEvidence(_OfArchitecture):
    """What the engine's host measures of an image."""

    labels: dict[str, str]
    bytes: int
    user: str
    entrypoint: list[str]
    driver: dict[str, str]
    """NVIDIA_* variables."""
    secrets: list[HostSecret]


class HygieneExpect(TypedDict):
    leftovers: Reasons


class Leftover(TypedDict):
    files: int
    bytes: int
    example: str


class Secret(TypedDict):
    path: str
    line: int
    """0: the file's name tells."""
    kind: str


class _HomeDetails(TypedDict, total=False):
    error: str
    mode: str
    for_all: bool


class Home(_HomeDetails):
    path: str


class HygieneEvidence(TypedDict):
    files: int
    read: int
    unreadable: list[str]
    leftovers: dict[str, Leftover]
    secrets: list[Secret]
    secrets_count: int
    home: Home
