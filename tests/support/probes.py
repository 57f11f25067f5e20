"""All probes of the suite, with their check files."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from validate import checks
from validate.claims import Tier


def all_probes() -> Iterator[tuple[str, ModuleType]]:
    """Yield every probe and its check file, imported."""
    probes = []
    for tier in Tier:
        for path in sorted((Path(checks.__file__).parent / tier).glob("[a-z]*.py")):
            probes.append(f"{tier}.{path.stem}")

    # A file that probes share is no probe itself.
    for probe in [*probes, *checks.SHARED_FILES]:
        if probe not in checks.SHARED_FILES.values():
            yield probe, checks.import_check(probe)
