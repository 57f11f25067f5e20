"""Keys of cosign, as a person makes them."""

import subprocess
from pathlib import Path

import pytest


def key_pairs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, with two pairs of keys without a password: `cosign` and `other`."""
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    for name in ("cosign", "other"):
        command = ["cosign", "generate-key-pair", "--output-key-prefix", name]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def cosign_verifies(reference: str, key: str | Path) -> bool:
    """Whether cosign itself accepts the signature of an image or an index."""
    command = ["cosign", "verify", "--insecure-ignore-tlog=true", "--key", str(key), reference]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
