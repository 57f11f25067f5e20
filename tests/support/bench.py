"""What tests of the benchmark share: an engine that remembers builds, a run on it, an entry of results."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from images.bench import results
from images.bench.accounting import Layer
from images.bench.builder import Builder
from images.bench.parts import BenchmarkRun
from images.context.hosting import HostSettings
from images.engine import CacheRecord, HistoryEntry, ignore
from tests.support.sources import SOURCES

MACHINE = {"processor": "p", "cores": 2, "memory": 2**34, "engine": "20.10", "storage": "overlay2", "python": "3.11"}
LOAD = {"before": 0.1, "after": 0.2, "busy": 0.01}


def layer(digest: str, gzip: int) -> Layer:
    return Layer(digest=digest, tar=gzip * 3, gzip=gzip, zstd=gzip - 1)


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

    def build_cache(self) -> tuple[CacheRecord, ...]:
        return tuple(
            CacheRecord(id=key, parents=(self.parents[key],) if key in self.parents else (), made_by=made_by, size=1)
            for key, made_by in self.records.items()
        )

    def forget(self, record: CacheRecord) -> None:
        if record.id not in {self.parents.get(key) for key in self.records}:
            del self.records[record.id]

    def inspect(self, reference: str) -> SimpleNamespace:
        below = ("sha256:base",)
        return SimpleNamespace(
            id=reference, layers=below if reference in ("base", "base:1") else (*below, "sha256:own", "sha256:x")
        )

    def history(self, _reference: str) -> tuple[HistoryEntry, ...]:
        return ()

    def untag(self, name: str) -> None:
        """There are no images."""

    def builder(self) -> Builder:
        return Builder(self, HostSettings(), "RUN-ID", ignore)  # type: ignore[arg-type]


STEP = {
    "Dockerfile": b"FROM base\nRUN --mount=type=cache,id=truetag-uv,target=/run/uv \\\n    sh /run/scripts/step.sh\n"
}


def bench_on(engine: Any, **more: Any) -> tuple[BenchmarkRun, list[str]]:
    """A run of the benchmark, and what it says."""
    said: list[str] = []
    progress: Any = SimpleNamespace(say=lambda _name, text: said.append(text))
    return BenchmarkRun(engine=engine, host=HostSettings(), sources=SOURCES, progress=progress, repeat=1, **more), said


ON = results.Machine(**MACHINE)  # type: ignore[arg-type]


def left_by(commit: str, *, on: results.Machine = ON, finished: bool = False) -> Any:
    data = {"images": {"one": {}}, "layers": {"a": layer("a", 5).as_json()}}
    return results.entry(data, on, commit, began="2026-01-02T03:04+00:00", seconds=5, finished=finished)
