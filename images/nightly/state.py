"""Trials of a nightly run so far, so that `--resume` repeats none: a file of JSON lines, one answer each."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from images.validation.rows import ClaimRow
from validate.claims import Tier
from validate.judging import Status


class Trial(BaseModel):
    """One set of versions, built and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claims: tuple[ClaimRow, ...]
    """Every claim that was judged, the good ones too."""
    overall: dict[Tier, Status] = {}
    digest: str = ""
    bytes: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    gpus: tuple[str, ...] = ()
    cause: str = ""
    """Why there is no verdict; empty where there is one."""

    def verdict(self, key: str) -> Status | None:
        """The verdict of a claim (`S4 symbols`); None: it was not judged."""
        return next((claim.verdict for claim in self.claims if claim.key == key), None)


class State:
    """Answers by key, in memory and in a file that only grows; without `resume` it starts empty. Thread safe."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        self._file = file
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()
        if not resume:
            file.unlink(missing_ok=True)
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                row = json.loads(line)
                self._known[row["key"]] = row["answer"]
            except (ValueError, KeyError, TypeError):
                continue  # an interruption cut it off: it is judged again

    def find(self, key: str) -> Any | None:
        return self._known.get(key)

    def keep(self, key: str, answer: Any) -> None:
        self._known[key] = answer
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps({"key": key, "answer": answer}))
