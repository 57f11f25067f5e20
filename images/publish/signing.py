"""Signatures with cosign: by a private key over bytes, and their check. What is signed and where it is kept is ours.

cosign 2 and 3 are both in use. What differs is told from the options that a program has: Debian's says no version.
"""

import base64
import functools
import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from images.errors import Problem, UserError, wrong

_SECONDS = 300
_NO_SERVICES = {
    "signing-config": '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", '
    '"rekorTlogConfig": {}, "tsaConfig": {}}',
    "trusted-root": '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}',
}
"""Option of cosign 3 -> a file's content, with which it asks no public service. cosign 2 has --tlog-upload=false."""
_NO_MATCH = (
    "invalid signature when validating",
    "ecdsa: Invalid IEEE_P1363",
    "crypto/rsa: verification error",
    "failed to verify signature",
)
"""What it says of what another key signed, or nobody, by a key for ECDSA (in two ways), RSA or Ed25519. Its status is
1, as for everything else."""
_PASSWORD = "COSIGN_PASSWORD"
_typed: dict[str, str] = {}
"""Private key -> its password, as a person typed it: for cosign alone, not for other programs that are started here."""


class CosignError(UserError):
    """cosign can't be run, or failed. `is_refusal`: it says that a signature is not the key's."""

    is_refusal = False


def require(key: str) -> None:
    """Raises UserError when there is no cosign, or no such key, before anything is sent."""
    if not shutil.which("cosign"):
        then = "install it (Debian trixie: `apt-get install cosign`); without --key, `publish` signs nothing"
        raise wrong(f"--key {key}", "there is no cosign on this machine", then)
    if "://" not in key and not Path(key).is_file():
        then = "`cosign generate-key-pair` makes one: cosign.key signs, cosign.pub verifies"
        raise wrong(f"--key {key}", "there is no such file", then)


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
    raise wrong(f"--key {key}", "cosign wants its password, and nobody is here", then)


@contextmanager
def public_file(key: str) -> Iterator[str]:
    """A file with the public key of a private one. Raises UserError with cosign's words."""
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
        public.write(_cosign(["public-key", "--key", key], f"--key {key}"))
        public.flush()
        yield public.name


def sign_bytes(content: bytes, key: str) -> str:
    """A signature over bytes, in base64. Raises UserError with cosign's words.

    By the key alone: no certificate, no time stamp, and no entry in the public transparency log, which would tell the
    names of private images. The key's password comes from COSIGN_PASSWORD, or from `require_password`.
    """
    with tempfile.TemporaryDirectory(prefix="truetag-sign-") as folder:
        place = {
            name: str(Path(folder, name))
            for name in ("content", "signature", "bundle", *_NO_SERVICES)
        }
        Path(place["content"]).write_bytes(content)
        known = _help("sign-blob", shutil.which("cosign") or "cosign")
        if "--use-signing-config=true" in known:  # cosign 3's default
            for option, text in _NO_SERVICES.items():
                Path(place[option]).write_text(text)
            options = [f"--{option}={place[option]}" for option in _NO_SERVICES]
        else:
            options = ["--tlog-upload=false"]
        out = next(
            one
            for one in ("signature", "bundle")
            if one == "bundle" or "--output-signature" in known
        )
        options += ["--output-signature" if out == "signature" else "--bundle", place[out]]
        _cosign(["sign-blob", "--yes", *options, "--key", key, place["content"]], f"--key {key}")
        written = Path(place[out]).read_text()
        return (
            written.strip()
            if out == "signature"
            else str(json.loads(written)["messageSignature"]["signature"])
        )


def is_signature(signature: str, content: bytes, key: str) -> bool:
    """Is it a signature of this public key over these bytes? In base64. Raises CosignError where cosign can't tell."""
    try:
        base64.b64decode(signature, validate=True)
    except ValueError:
        return False
    with tempfile.TemporaryDirectory(prefix="truetag-verify-") as folder:
        signed, subject = Path(folder, "signature"), Path(folder, "content")
        signed.write_text(signature)
        subject.write_bytes(content)
        options = ["--insecure-ignore-tlog=true", "--key", key, "--signature", str(signed)]
        try:
            _cosign(["verify-blob", *options, str(subject)], f"--key {key}")
        except CosignError as error:
            if error.is_refusal:
                return False
            raise
    return True


@functools.cache
def _help(verb: str, program: str) -> str:
    """Of a verb; hidden options are not in it."""
    done = subprocess.run(
        [program, verb, "--help"], capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    return done.stdout


def _cosign(arguments: Sequence[str], where: str) -> str:
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
        raise CosignError(
            Problem(where=where, cause=f"cosign can't be run: {error}", then="`cosign version`")
        ) from None
    if done.returncode != 0:
        lines = [
            line
            for line in done.stderr.splitlines()
            if line.strip() and not line.startswith("WARNING")
        ]
        cause = f"cosign {arguments[0]}: {'; '.join(lines[-2:]) or f'status {done.returncode}'}"
        then = "is it the right key, and COSIGN_PASSWORD its password? publishing again only adds what is missing"
        failure = CosignError(Problem(where=where, cause=cause, then=then), code=1)
        failure.is_refusal = any(said in done.stderr for said in _NO_MATCH)
        raise failure
    return done.stdout
