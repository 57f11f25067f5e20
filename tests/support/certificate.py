"""A certificate of `registry.test`, which signs itself, until 2126. Nothing but tests trusts it."""

from pathlib import Path

_CERTIFICATE = Path(__file__).with_name("registry.test.crt")
_KEY = (
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2i6GoBpaVt7NMZLHaGVKtDsMhYPPW+u93q0DNEURxuuhRANCAAR5"
    "QBtW51H1skEu+DJxDTUI/w+9nyG9+9xQFaFbvXDgRRmX8n+UvoKZrghalAIFUeKogBwwdzlkab85JwibWp4K"
)
"""Not as a file: nobody should take it for a secret."""


def write(folder: Path) -> Path:
    """Write the certificate and its key into one file (PEM), and return its path."""
    path = folder / "registry.test.pem"
    kind = "PRIVATE KEY-----"
    path.write_text(f"-----BEGIN {kind}\n{_KEY}\n-----END {kind}\n{_CERTIFICATE.read_text()}")
    return path
