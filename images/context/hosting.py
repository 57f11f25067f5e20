"""What a build must know of the host's network: certificates, package indexes, proxies. It leaves no trace in an image.

The settings travel as files in the build context, below `host/`, and each RUN step that needs the network mounts them:

    RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && apt-get update && ...

No layer keeps a mounted file. They do stay in that engine's build cache, and they are part of the steps' cache keys: a
changed CA bundle or index address builds the steps anew.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from images.locking import debian, uv

MOUNT = "/run/host"
"""Where the templates mount `host/`."""

# A bundle is taken only where the environment names one: only then do we know that somebody wants it, while the
# distribution's own bundle changes with every update and would throw the build cache away for nothing. One that is
# named is taken whatever it holds: networks add their own authority to the distribution's file in place.
_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CA_READERS = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
)

_INDEX_VARIABLES = re.compile(
    rf"{uv.INDEX_VARIABLES}|PIP_(?:INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)"
)
_FURTHER_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_APT_SETTINGS = re.compile(
    r"Acquire::(?:https?::(?:Proxy(?:::.+)?|Timeout|Pipeline-Depth)|Check-Valid-Until|Check-Date|Retries|ForceIPv[46])"
)
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """The host's network settings, as a build needs them."""

    ca: bytes | None = None
    index: Mapping[str, str] = field(default_factory=dict)
    proxies: Mapping[str, str] = field(default_factory=dict)
    apt: Mapping[str, str] = field(default_factory=dict)
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """Variables that name mirrors of Debian's archives (images/locking/debian.py)."""
    warnings: tuple[str, ...] = ()

    def network(self, *, local: bool, offline: bool = False) -> str | None:
        """The network of build steps; None: the engine's default. `local`: the engine runs on this machine, whose
        loopback an index or a proxy may listen on."""
        if offline:
            return "none"
        return "host" if local and any(self.local_addresses()) else None

    def files(self) -> dict[str, bytes]:
        """The part of a build context that carries the settings. `host/env` is always there, be it empty."""
        exports = {**self.index, **self.mirrors}
        for name, value in self.proxies.items():
            exports |= {name: value, name.upper(): value}
        if self.ca:
            exports |= dict.fromkeys(_CA_READERS, f"{MOUNT}/ca.crt")
        apt = dict(self.apt) | ({"Acquire::https::CaInfo": f"{MOUNT}/ca.crt"} if self.ca else {})
        if apt:
            exports["APT_CONFIG"] = f"{MOUNT}/apt.conf"
        lines = "".join(
            f'{name} "{value}";\n' for name, value in sorted(apt.items()) if '"' not in value
        )
        env = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in sorted(exports.items())
        )
        return {
            "host/env": env.encode(),
            **({"host/ca.crt": self.ca} if self.ca else {}),
            **({"host/apt.conf": lines.encode()} if apt else {}),
        }

    def redact(self, text: str) -> str:
        """`text` without the names and passwords of these settings' addresses."""
        for name, value in self.values:
            passwords = [value] if name.endswith("_PASSWORD") else []
            passwords += [
                password for address in value.split() if (password := urlsplit(address).password)
            ]
            for password in [*passwords, *map(unquote, passwords)]:
                text = text.replace(password, "***")
        return _USERINFO.sub("***@", text)

    @property
    def values(self) -> list[tuple[str, str]]:
        return [
            *self.index.items(),
            *self.proxies.items(),
            *self.apt.items(),
            *self.mirrors.items(),
        ]

    def local_addresses(self) -> Iterator[tuple[str, str]]:
        """What listens on this machine."""
        for name, value in self.values:
            for address in value.split():
                host = urlsplit(address).hostname or "" if "://" in address else ""
                if (
                    host in ("localhost", "::1")
                    or host.endswith(".localhost")
                    or host.startswith("127.")
                ):
                    yield name, address


def host_settings() -> HostSettings:
    """The settings of the machine this runs on."""
    words = ["apt-config", "dump", "--format", "%f=%v%n"]
    dump = ""
    if shutil.which(words[0]):
        dump = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30).stdout
    apt = dict(line.partition("=")[::2] for line in dump.splitlines())
    return settings_of(os.environ, apt, debian.variables())


def settings_of(
    env: Mapping[str, str],
    apt: Mapping[str, str] | None = None,
    mirrors: Mapping[str, str] | None = None,
) -> HostSettings:
    """Return the settings in an environment, `apt-config`'s values, and variables that name mirrors of Debian."""
    ca, warnings = find_bundle(env)
    for name in _FURTHER_INDEXES:
        if env.get(name):
            cause = "names a further index, and locks come from one"
            warnings.append(f"{name} {cause}: ignored (UV_DEFAULT_INDEX is honoured)")

    index: dict[str, str] = {}
    for name, value in sorted(env.items()):
        if not _INDEX_VARIABLES.fullmatch(name) or not value:
            continue
        if "file:" in value or (
            name.endswith(("INDEX_URL", "DEFAULT_INDEX")) and "://" not in value
        ):
            warnings.append(
                f"{name} leads to files of this machine, which a build can't see: ignored"
            )
        else:
            index[name] = value

    proxies = {}
    for name in _PROXY_VARIABLES:
        address = env.get(name) or env.get(name.upper())
        if address:
            proxies[name] = address
    settings = HostSettings(
        ca=ca,
        index=uv.with_index_of_pip(index, index),
        proxies=proxies,
        apt={
            name: value
            for name, value in (apt or {}).items()
            if _APT_SETTINGS.fullmatch(name) and value
        },
        mirrors=mirrors or {},
    )
    for name, value in settings.local_addresses():
        shown = _USERINFO.sub("***@", value)
        warnings.append(
            f"{name} names this machine ({shown}): build steps reach it only on the host's network"
        )
    return replace(settings, warnings=tuple(warnings))


def find_bundle(env: Mapping[str, str]) -> tuple[bytes | None, list[str]]:
    """Return the first bundle of certificates that a variable names, and a warning for each one that is none."""
    warnings: list[str] = []
    for name in _CA_VARIABLES:
        if not env.get(name):
            continue
        file = Path(env[name])
        content = file.read_bytes() if file.is_file() and os.access(file, os.R_OK) else b""
        if b"-----BEGIN CERTIFICATE-----" in content:
            return content, warnings
        warnings.append(f"{name} names {file}, which is no readable file of certificates: ignored")
    return None, warnings
