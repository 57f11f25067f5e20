"""Signatures with cosign: over an image and, by an annotation, what is attached to it; over statements about it.

cosign 2 and 3 are both in use. What differs is told from the options that a program has: Debian's says no version.
"""

from __future__ import annotations

import base64
import functools
import getpass
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.errors import Problem, UserError

ATTACHMENTS = "dev.truetag.attachments"
"""The annotation in the signed payload: digests of the image's attachments, with spaces between."""
_SIGNATURE_TYPES = ("cosign container image signature", "https://sigstore.dev/cosign/sign/v1")
"""What a signed payload says it is: as cosign 2 and as cosign 3 write it."""
_SECONDS = 300
_NO_SERVICES = {
    "signing-config": '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", '
    '"rekorTlogConfig": {}, "tsaConfig": {}}',
    "trusted-root": '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}',
}
"""Option of cosign 3 -> a file's content, with which it asks no public service. cosign 2 has --tlog-upload=false."""


CREDENTIALS = {"awskms": "AWS_", "gcpkms": "GOOGLE_", "azurekms": "AZURE_", "hashivault": "VAULT_"}
"""Scheme of a key -> how the variables begin that its service takes credentials from."""
_NO_SIGNATURE = (10, 12)
"""Statuses of `cosign verify` for none and none of this key (cosign's cmd/cosign/errors/exit_codes.go)."""
_NO_MATCH = (
    "no matching attestations",
    "invalid signature when validating",
    "ecdsa: Invalid IEEE_P1363",
    "crypto/rsa: verification error",
    "failed to verify signature",
)
"""What it says of what another key signed, or nobody: cosign 3 of a bundle, both of bytes, by a key for ECDSA (in two
ways), RSA or Ed25519. Its status is 1, as for everything else."""

_PASSWORD = "COSIGN_PASSWORD"
_typed: dict[str, str] = {}
"""Private key -> its password, as a person typed it: for cosign alone, not for other programs that are started here."""


class CosignError(UserError):
    """cosign can't be run, or failed before it could tell: no access, say. It says nothing about a signature."""


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """A public key, whatever the private one lies in."""

    pem: str

    @property
    def key_id(self) -> str:
        """Base64 of the SHA-256 of the key in DER, as cosign's bundles name it."""
        lines = [line for line in self.pem.splitlines() if line and not line.startswith("-----")]
        return base64.b64encode(hashlib.sha256(base64.b64decode("".join(lines))).digest()).decode()


def require(key: str) -> None:
    """Raises UserError when there is no cosign, or no such key, before anything is sent."""
    if not shutil.which("cosign"):
        then = "install it (Debian trixie: `apt-get install cosign`); without --key, `publish` signs nothing"
        raise UserError(Problem(where=f"--key {key}", cause="there is no cosign on this machine", then=then))
    if "://" not in key and not Path(key).is_file():
        then = "`cosign generate-key-pair` makes one: cosign.key signs, cosign.pub verifies"
        raise UserError(Problem(where=f"--key {key}", cause="there is no such file", then=then))


def require_password(key: str) -> None:
    """Ask for the password of a private key, once: cosign's own question would not be seen.

    Raises UserError where there is nobody to ask.
    """
    scheme, of_service, _ = key.partition("://")
    if (of_service and scheme != "env") or _PASSWORD in os.environ or key in _typed:
        return
    try:
        if sys.stdin and sys.stdin.isatty():
            _typed[key] = getpass.getpass(f"password of {key}: ")
            return
    except EOFError:
        pass
    then = f"set {_PASSWORD} to it, or to nothing where the key has none"
    raise UserError(Problem(where=f"--key {key}", cause="cosign wants its password, and nobody is here", then=then))


def is_secret(variable: str, key: str) -> bool:
    """Whether an environment variable may hold a key, its password or its service's credentials. `key`: `--key`."""
    scheme, _, name = key.partition("://")
    named = scheme == "env" and variable == name
    service = CREDENTIALS.get(scheme, "")
    return named or variable.startswith("COSIGN_") or (bool(service) and variable.startswith(service))


def has_known_secrets(key: str) -> bool:
    """Whether `is_secret` knows all variables of a key."""
    return "://" not in key or key.partition("://")[0] in ("env", *CREDENTIALS)


def sign(image: str, key: str, attachments: Collection[str]) -> None:
    """Sign `HOST/NAME@sha256:...` and what is attached to it, once. Raises UserError with cosign's words.

    The public transparency log is not written to: it would publish the names of private images. The password of
    the key comes from COSIGN_PASSWORD, or from `require_password`.
    """
    if _is_signed(image, key, attachments):
        return
    annotation = f"{ATTACHMENTS}={' '.join(sorted(attachments))}"
    with _privately("sign", image) as options:
        _cosign(["sign", "--yes", *options, "--key", key, "-a", annotation, image], image)


def _is_signed(image: str, key: str, attachments: Collection[str]) -> bool:
    with public_file(key) as public:
        try:
            return signed_attachments(image, public) >= set(attachments)
        except CosignError:
            raise
        except UserError:
            return False


@contextmanager
def public_file(key: str) -> Iterator[str]:
    """A file with the public key of a private one. Raises UserError with cosign's words."""
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
        public.write(public_key(key).pem)
        public.flush()
        yield public.name


def signed_attachments(image: str, key: str) -> frozenset[str]:
    """Digests of attachments that an image's valid signatures cover.

    Raises UserError where there is none, CosignError where cosign could not tell.
    """
    arguments = ["verify", "--insecure-ignore-tlog=true", "--output", "json", "--key", key, image]
    found: Any = json.loads(_cosign(arguments, image) or "[]")
    # cosign 3 takes a signed statement about an image for a signature of it.
    signatures = [payload for payload in found if payload["critical"]["type"] in _SIGNATURE_TYPES]
    if not signatures:
        cause = "there are signed statements about the image, but no signature of it"
        raise UserError(Problem(where=image, cause=cause, then=_then("verify")), code=1)
    lists = [str((payload.get("optional") or {}).get(ATTACHMENTS, "")) for payload in signatures]
    return frozenset(digest for text in lists for digest in text.split())


def public_key(key: str) -> PublicKey:
    """The public key of a private one. Raises UserError with cosign's words."""
    return PublicKey(pem=_cosign(["public-key", "--key", key], f"--key {key}"))


def sign_bytes(content: bytes, key: str) -> str:
    """A signature over bytes, in base64. Raises UserError with cosign's words."""
    with tempfile.TemporaryDirectory(prefix="truetag-sign-") as name:
        folder = Path(name)
        (folder / "content").write_bytes(content)
        last = str(folder / "content")
        with _privately("sign-blob", key) as options:
            if "--output-signature" in _options("sign-blob"):
                out = ["--output-signature", str(folder / "signature")]
            else:
                out = ["--bundle", str(folder / "bundle")]
            _cosign(["sign-blob", "--yes", *options, "--key", key, *out, last], f"--key {key}")
        if (folder / "signature").exists():
            return (folder / "signature").read_text().strip()
        return str(json.loads((folder / "bundle").read_bytes())["messageSignature"]["signature"])


def is_signature(signature: str, content: bytes, public: PublicKey) -> bool:
    """Is it a signature of this key over these bytes? In base64. Raises CosignError where cosign could not tell."""
    with tempfile.TemporaryDirectory(prefix="truetag-verify-") as name:
        files = {"key": public.pem.encode(), "signature": signature.encode(), "content": content}
        for file, data in files.items():
            Path(name, file).write_bytes(data)
        key, signed, subject = (str(Path(name, file)) for file in files)
        try:
            arguments = ["verify-blob", "--insecure-ignore-tlog=true", "--key", key, "--signature", signed, subject]
            _cosign(arguments, "a statement")
        except CosignError:
            raise
        except UserError:
            return False
    return True


def statements(image: str, key: str, predicate_type: str) -> tuple[bytes, ...]:
    """The statements of a type about an image that cosign accepts with a key, as they were signed.

    Raises UserError with cosign's words where there is none.
    """
    arguments = ["verify-attestation", "--insecure-ignore-tlog=true", "--type", predicate_type, "--key", key, image]
    lines = _cosign(arguments, image).splitlines()
    return tuple(base64.b64decode(json.loads(line)["payload"]) for line in lines if line.startswith("{"))


@contextmanager
def _privately(verb: str, where: str) -> Iterator[list[str]]:
    """Options with which a verb signs by the key alone: no certificate, no time stamp, no transparency log."""
    known = _options(verb)
    if "--use-signing-config=true" not in known:  # cosign 3's default
        yield ["--tlog-upload=false"]
        return
    with tempfile.TemporaryDirectory(prefix="truetag-cosign-") as folder:
        for option, content in _NO_SERVICES.items():
            Path(folder, option).write_text(content)
        yield [f"--{option}={Path(folder, option)}" for option in _NO_SERVICES]


def _options(verb: str) -> str:
    """The help of a verb. Hidden options are not in it."""
    return _help(verb, shutil.which("cosign") or "cosign")


@functools.cache
def _help(verb: str, program: str) -> str:
    done = subprocess.run([program, verb, "--help"], capture_output=True, text=True, check=False, timeout=_SECONDS)
    return done.stdout


def _cosign(arguments: Sequence[str], image: str) -> str:
    key = next((one for one in arguments if one in _typed), "")
    password = {_PASSWORD: _typed[key]} if key else {}
    try:
        done = subprocess.run(
            ["cosign", *arguments],
            stdin=subprocess.DEVNULL,  # what it would ask for goes where nobody sees it
            capture_output=True,
            env={**os.environ, **password},
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = Problem(where=image, cause=f"cosign can't be run: {error}", then="`cosign version`")
        raise CosignError(problem) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        words = "; ".join(lines[-2:]) or f"status {done.returncode}"
        unsigned = done.returncode in _NO_SIGNATURE or any(said in done.stderr for said in _NO_MATCH)
        problem = Problem(where=image, cause=f"cosign {arguments[0]}: {words}", then=_then(arguments[0]))
        raise (UserError if unsigned else CosignError)(problem, code=1)
    return done.stdout


def _then(verb: str) -> str:
    if verb.startswith("verify"):
        return "is it the key of who published it? an image without a signature is checked with --unsigned"
    return "is COSIGN_PASSWORD the key's password? publishing again only adds what is missing"
