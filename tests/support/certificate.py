"""A certificate of `registry.test`, which signs itself, until 2126. Nothing but tests trusts it."""

from pathlib import Path

_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBsTCCAVegAwIBAgIUTsqbysp/ZwZ+AjpXBZesMsEOjNUwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNcmVnaXN0cnkudGVzdDAgFw0yNjExMjMxMjI0MDNaGA8yMTI2
MTAzMDEyMjQwM1owGDEWMBQGA1UEAwwNcmVnaXN0cnkudGVzdDBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABHlAG1bnUfWyQS74MnENNQj/D72fIb373FAVoVu9cOBF
GZfyf5S+gpmuCFqUAgVR4qiAHDB3OWRpvzknCJtangqjfTB7MB0GA1UdDgQWBBRi
3+iVcCJgAJNcW+kSweher7iwuTAfBgNVHSMEGDAWgBRi3+iVcCJgAJNcW+kSwehe
r7iwuTAYBgNVHREEETAPgg1yZWdpc3RyeS50ZXN0MA4GA1UdDwEB/wQEAwIChDAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQCM8VO7Oe8qtmdwYf76
2pNgB1qQbuQ0OCSYs+7d6Y9/GQIgd097+h7W0yhOO25KKilagk3bxz5eedVdcpGy
c9c7cvI=
-----END CERTIFICATE-----
"""
_KEY = (
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2i6GoBpaVt7NMZLHaGVKtDsMhYPPW+u93q0DNEURxuuhRANCAAR5"
    "QBtW51H1skEu+DJxDTUI/w+9nyG9+9xQFaFbvXDgRRmX8n+UvoKZrghalAIFUeKogBwwdzlkab85JwibWp4K"
)
"""Not as a file: nobody should take it for a secret."""


def write(folder: Path) -> Path:
    """The certificate and its key in one file (PEM), below `folder`."""
    path = folder / "registry.test.pem"
    kind = "PRIVATE KEY-----"
    path.write_text(f"-----BEGIN {kind}\n{_KEY}\n-----END {kind}\n{_CERTIFICATE}")
    return path
