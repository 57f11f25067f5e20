"""What tests of the benchmarks share: an engine that remembers builds, and a session on it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from benchmarks.builder import Builder
from images.context.hosting import HostSettings
from images.engine import HistoryEntry, ignore

LOAD = {"before": 0.1, "after": 0.2, "busy": 0.01}
STEP = {
    "Dockerfile": b"FROM base\nRUN --mount=type=cache,id=truetag-uv,target=/run/uv \\\n    sh /run/scripts/step.sh\n"
}


class Cache:
    """An engine that remembers builds: each adds a record, as builds of somebody else do."""

    def __init__(self) -> None:
        self.records = {"old": "mount / from exec old"}
        self.parents: dict[str, str] = {}
        self.asked: list[tuple[Mapping[str, Any], bool]] = []

    def build(
        self, files: Mapping[str, Any], tag: str | None, *, no_cache: bool = False, **_: object
    ) -> SimpleNamespace:
        self.asked.append((files, no_cache))
        step = next(line for line in files["Dockerfile"].decode().splitlines() if "sh /run" in line)
        self.records |= {"ours": f"mount / from exec {step}", "theirs": "mount / from exec theirs"}
        return SimpleNamespace(image_id="sha256:1")

    @property
    def sdk(self) -> Any:
        return self

    def df(self) -> dict[str, Any]:
        records = self.records.items()
        return {"BuildCache": [{"ID": key, "Parent": self.parents.get(key), "Description": by} for key, by in records]}

    def prune_builds(self, *, filters: Mapping[str, list[str]], **_: object) -> None:
        (key,) = filters["id"]
        if key not in {self.parents.get(one) for one in self.records}:
            del self.records[key]

    def history(self, _reference: str) -> tuple[HistoryEntry, ...]:
        return ()

    def untag(self, name: str) -> None:
        """There are no images."""

    def builder(self) -> Builder:
        return Builder(self, HostSettings(), "RUN-ID", ignore)  # type: ignore[arg-type]
