"""Signatures with cosign, over an image and, by an annotation, over the digests of what is attached to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from images.errors import Problem, UserError

ATTACHMENTS = "dev.truetag.attachments"
"""The annotation in the signed payload: digests of the image's attachments, with spaces between."""
_SECONDS = 300


def require(key: str) -> None:
    """Raises UserError when there is no cosign, or no such key, before anything is sent."""
    if not shutil.which("cosign"):
        then = "install it (Debian trixie: `apt-get install cosign`), or leave --key out and publish unsigned"
        raise UserError(Problem(where=f"--key {key}", cause="there is no cosign on this machine", then=then))
    if "://" not in key and not Path(key).is_file():
        then = "`cosign generate-key-pair` makes one: cosign.key signs, cosign.pub verifies"
        raise UserError(Problem(where=f"--key {key}", cause="there is no such file", then=then))


def sign(image: str, key: str, attachments: Collection[str]) -> None:
    """Sign `HOST/NAME@sha256:...` and what is attached to it, once. Raises UserError with cosign's words.

    The public transparency log is not written to: it would publish the names of private images. cosign takes the key's
    password from COSIGN_PASSWORD, or asks for it.
    """
    if _is_signed(image, key, attachments):
        return
    annotation = f"{ATTACHMENTS}={' '.join(sorted(attachments))}"
    _cosign(["sign", "--yes", "--tlog-upload=false", "--key", key, "-a", annotation, image], image)


def _is_signed(image: str, key: str, attachments: Collection[str]) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
        public.write(_cosign(["public-key", "--key", key], image))
        public.flush()
        try:
            return signed_attachments(image, public.name) >= set(attachments)
        except UserError:
            return False


def signed_attachments(image: str, key: str) -> frozenset[str]:
    """Digests of attachments that an image's valid signatures cover. Raises UserError where there is none."""
    arguments = ["verify", "--insecure-ignore-tlog=true", "--output", "json", "--key", key, image]
    found: Any = json.loads(_cosign(arguments, image) or "[]")
    lists = [str((payload.get("optional") or {}).get(ATTACHMENTS, "")) for payload in found]
    return frozenset(digest for text in lists for digest in text.split())


def _cosign(arguments: Sequence[str], image: str) -> str:
    try:
        done = subprocess.run(["cosign", *arguments], capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(Problem(where=image, cause=f"cosign can't be run: {error}", then="`cosign version`")) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        words = "; ".join(lines[-2:]) or f"status {done.returncode}"
        raise UserError(Problem(where=image, cause=f"cosign {arguments[0]}: {words}", then=_then(arguments[0])), code=1)
    return done.stdout


def _then(verb: str) -> str:
    if verb == "verify":
        return "is it the key of who published it? an image without a signature is checked with --unsigned"
    return "is COSIGN_PASSWORD the key's password? publishing again only adds what is missing"
