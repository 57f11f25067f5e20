"""Sign bytes with a private key, and check signatures, by calling the program `cosign`.

Where signatures are stored is decided elsewhere (`attachments.py`). cosign 2 and 3 are both in use.
They are told apart by the options in their help, as Debian's cosign reports no version.
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
"""The longest that a call of cosign may take."""
_NO_SERVICES = {
    "signing-config": '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", '
    '"rekorTlogConfig": {}, "tsaConfig": {}}',
    "trusted-root": '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}',
}
"""Option of cosign 3 -> content of the file that it takes. With both, it contacts no public
service. cosign 2 has --tlog-upload=false for this."""
_NO_MATCH = (
    "invalid signature when validating",
    "ecdsa: Invalid IEEE_P1363",
    "crypto/rsa: verification error",
    "failed to verify signature",
)
"""What cosign prints for a signature that the key did not make: for ECDSA keys (the first two), RSA
and Ed25519. Its exit status is 1, as for every other error."""
_PASSWORD = "COSIGN_PASSWORD"
_typed_passwords: dict[str, str] = {}
"""Private key -> the password that the user typed. Only cosign gets it, no other program."""


class CosignError(UserError):
    """cosign could not be run, or it failed."""

    is_refusal = False
    """True where cosign says that the key did not make a signature."""


def require_key(key: str) -> None:
    """Raise UserError if cosign is not installed or the file `key` does not exist.

    A key of the form `SCHEME://...` is in a key management service and is not looked for.
    """
    if not shutil.which("cosign"):
        then = "install it (Debian trixie: `apt-get install cosign`), and give the command again"
        raise wrong(f"--key {key}", "there is no cosign on this machine", then)
    if "://" not in key and not Path(key).is_file():
        then = "`cosign generate-key-pair` makes one: cosign.key signs, cosign.pub verifies"
        raise wrong(f"--key {key}", "there is no such file", then)


def require_password(key: str) -> None:
    """Ask the user for the password of a private key, and remember it for later calls of cosign.

    `key` is what --key names: a file, `env://VARIABLE` or the address of a key management service.
    Does nothing if the password is known (COSIGN_PASSWORD, or typed before), or if the key is in a
    service. Raises UserError without a terminal to ask at, or if the user types no answer.
    """
    # `env://VARIABLE` is no service: the variable has the key itself, with a password like a file.
    scheme, separator, _ = key.partition("://")
    is_in_service = bool(separator) and scheme != "env"
    if is_in_service or _PASSWORD in os.environ or key in _typed_passwords:
        return
    # cosign would ask, too, but its output is captured: nobody would see the question.
    try:
        if sys.stdin and sys.stdin.isatty():
            _typed_passwords[key] = getpass.getpass(f"password of {key}: ")
            return
    except EOFError:
        # The user pressed Ctrl-D.
        pass
    cause = "cosign needs the password of this key, and there is no terminal to ask for it"
    then = f"set the variable {_PASSWORD} to the password, or to an empty text if it has none"
    raise wrong(f"--key {key}", cause, then)


@contextmanager
def public_file(key: str) -> Iterator[str]:
    """Yield the path of a temporary file with the public key that belongs to a private key.

    Raises CosignError where cosign cannot read the key.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
        public.write(_cosign(["public-key", "--key", key], f"--key {key}"))
        public.flush()
        yield public.name


def sign_bytes(content: bytes, key: str) -> str:
    """Return a signature over bytes by a private key, in base64.

    It stands on the key alone: no certificate, no time stamp, and no entry in the public
    transparency log, which would publish the names of private images. cosign takes the key's
    password from COSIGN_PASSWORD or from `require_password`. Raises CosignError if it fails.
    """
    # The help shows which options this cosign has: they differ from release to release.
    help_text = _help("sign-blob", shutil.which("cosign") or "cosign")
    with tempfile.TemporaryDirectory(prefix="truetag-sign-") as folder:
        # Switch off the public services: cosign 3 takes files for that, cosign 2 an option.
        options: list[str] = []
        if "--use-signing-config=true" in help_text:
            for option, text in _NO_SERVICES.items():
                file = Path(folder, option)
                file.write_text(text)
                options.append(f"--{option}={file}")
        else:
            options.append("--tlog-upload=false")

        # A cosign without an option for the signature alone writes a bundle that contains it.
        writes_signature = "--output-signature" in help_text
        output = Path(folder, "output")
        options += ["--output-signature" if writes_signature else "--bundle", str(output)]

        subject = Path(folder, "content")
        subject.write_bytes(content)
        _cosign(["sign-blob", "--yes", *options, "--key", key, str(subject)], f"--key {key}")
        written = output.read_text()
    if writes_signature:
        return written.strip()
    bundle = json.loads(written)
    return str(bundle["messageSignature"]["signature"])


def is_signature(signature: str, content: bytes, key: str) -> bool:
    """Return whether a base64 text is a signature over these bytes by this public key.

    Raises CosignError where cosign cannot tell, as for a key that is no key.
    """
    # Anybody may have written the text. What is not base64 is no signature.
    try:
        base64.b64decode(signature, validate=True)
    except ValueError:
        return False
    with tempfile.TemporaryDirectory(prefix="truetag-verify-") as folder:
        signature_file = Path(folder, "signature")
        signature_file.write_text(signature)
        subject = Path(folder, "content")
        subject.write_bytes(content)
        options = ["--insecure-ignore-tlog=true", "--key", key, "--signature", str(signature_file)]
        try:
            _cosign(["verify-blob", *options, str(subject)], f"--key {key}")
        except CosignError as error:
            # cosign fails, too, for a signature by another key: then the answer is no.
            if error.is_refusal:
                return False
            raise
    return True


@functools.cache
def _help(verb: str, program: str) -> str:
    """Return the help text of a verb of cosign. It does not list hidden options."""
    done = subprocess.run(
        [program, verb, "--help"], capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    return done.stdout


def _cosign(arguments: Sequence[str], where: str) -> str:
    """Run cosign and return its output. `where` names the key in the error message.

    If one of the arguments is a key whose password the user typed, cosign gets this password.
    Raises CosignError if cosign cannot be run, fails or takes longer than five minutes. The error's
    `is_refusal` is True if cosign says that the key did not make a signature.
    """
    environment = dict(os.environ)
    for argument in arguments:
        if argument in _typed_passwords:
            environment[_PASSWORD] = _typed_passwords[argument]
    try:
        done = subprocess.run(
            ["cosign", *arguments],
            # It must not wait for an answer: nobody sees its questions.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        cause = f"cosign can't be run: {error}"
        then = "make `cosign version` work, then give the command again"
        raise CosignError(Problem(where=where, cause=cause, then=then)) from None
    if done.returncode == 0:
        return done.stdout

    # The last two lines say what failed.
    lines = []
    for line in done.stderr.splitlines():
        if line.strip() and not line.startswith("WARNING"):
            lines.append(line)
    message = "; ".join(lines[-2:]) or f"status {done.returncode}"
    cause = f"cosign {arguments[0]}: {message}"
    then = (
        f"check that this is the right key, and that {_PASSWORD} holds its password; then give the "
        "command again: it adds only what is missing"
    )
    # Exit status 1: a step failed. (2 stands for wrong input.)
    failure = CosignError(Problem(where=where, cause=cause, then=then), code=1)
    failure.is_refusal = any(phrase in done.stderr for phrase in _NO_MATCH)
    raise failure
