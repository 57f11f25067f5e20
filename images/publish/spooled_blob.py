"""A compressed layer on its way to a registry, in a file without a name."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class SpooledBlob:
    """A compressed layer in a file without a name: whatever ends this process takes it along."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.size = 0
        self.annotations: Mapping[str, str] = {}
        """What a manifest says of it, beside digest and size."""

    def write(self, content: bytes) -> None:
        """Raises OSError, for a full disk say."""
        self._hash.update(content)
        self.size += len(content)
        view = memoryview(content)
        while view:
            view = view[self._file.write(view) :]

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, offset: int, size: int) -> bytes:
        """From any thread."""
        return os.pread(self._file.fileno(), size, offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
