"""Finds the host's network settings for a build: certificates, package indexes, proxies, mirrors.

They leave no trace in an image. They travel as files in the build context, below `host/`, and each
RUN step that needs the network mounts them:

    RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && apt-get update && ...

No layer keeps a mounted file. But the files stay in that engine's build cache, and they are part of
the steps' cache keys: after a change of the CA bundle or the index, the steps are built again.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from images.errors import wrong
from images.locking import debian, index_access, uv

MOUNT = "/run/host"
"""Where the templates mount `host/`."""

# A bundle is taken only if the environment names one. The distribution's own bundle changes with
# every update, and would make the build cache useless for nothing. A bundle that is named is taken
# whatever it holds: networks add their own authority to the distribution's file in place.
_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# The variables that curl, git, pip, Python and uv read in a build step.
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
    r"Acquire::(?:https?::(?:Proxy(?:::.+)?|Timeout|Pipeline-Depth)"
    r"|Check-Valid-Until|Check-Date|Retries|ForceIPv[46])"
)


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """The host's network settings that a build needs."""

    ca: bytes | None = None
    """A bundle of certificate authorities."""
    index: Mapping[str, str] = field(default_factory=dict)
    """Variables of pip and uv that name the package index."""
    proxies: Mapping[str, str] = field(default_factory=dict)
    """Proxy variables, in lower case."""
    apt: Mapping[str, str] = field(default_factory=dict)
    """apt's settings (`Acquire::Retries`) -> value."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """Variables that name mirrors of Debian's archives (images/locking/debian.py)."""
    warnings: tuple[str, ...] = ()

    def network(self, *, local: bool, rootless: bool = False, offline: bool = False) -> str | None:
        """Return the network mode of build steps: `none`, `host`, or None for the engine's default.

        `offline` builds get no network. If the engine runs on this machine (`local`), and an index
        or a proxy listens on its loopback, steps need the host's network to reach it. Raises
        UserError if the engine is `rootless` then: its host's network is one of its own.
        """
        if offline:
            return "none"
        on_loopback = list(self.local_addresses()) if local else []
        if not on_loopback:
            return None
        if rootless:
            # The setting that names the address, for example `http_proxy`.
            name, address = on_loopback[0]
            shown = index_access.without_login(address)
            cause = (
                f"names a proxy or index on this machine's loopback ({shown}), which build steps "
                "of a rootless engine can't reach"
            )
            then = (
                "let it listen on another address of this machine, and set the variable to that "
                "address; or build on an engine that runs as root (--engine URL)"
            )
            raise wrong(name, cause, then)
        return "host"

    def files(self) -> dict[str, bytes]:
        """Return this machine's settings (proxies, mirrors) for build steps: path -> content.

        The paths are below the build context. `host/env` has a line `export NAME=VALUE` for each
        variable; it always exists. The certificates (`host/ca.crt`) and apt's settings
        (`host/apt.conf`) are files of their own, to which variables point.
        """
        exports = {**self.index, **self.mirrors}
        apt = dict(self.apt)
        files = {}
        for name, value in self.proxies.items():
            # Some programs read only the name in capitals, others only that in lower case.
            exports |= {name: value, name.upper(): value}
        if self.ca:
            files["host/ca.crt"] = self.ca
            exports |= dict.fromkeys(_CA_READERS, f"{MOUNT}/ca.crt")
            apt["Acquire::https::CaInfo"] = f"{MOUNT}/ca.crt"
        if apt:
            settings = []
            for name, value in sorted(apt.items()):
                # apt has no way to write a value with a quote, so it is left out.
                if '"' not in value:
                    settings.append(f'{name} "{value}";\n')
            files["host/apt.conf"] = "".join(settings).encode()
            exports["APT_CONFIG"] = f"{MOUNT}/apt.conf"
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(exports.items())]
        return {"host/env": "".join(lines).encode(), **files}

    def redact(self, text: str) -> str:
        """Return a text without passwords of the settings, and without the users of any address.

        `***` stands in place of each (`index_access.redact`).
        """
        return index_access.redact(text, self.values)

    @property
    def values(self) -> list[tuple[str, str]]:
        """All settings that may hold an address, as (name, value)."""
        return [
            *self.index.items(),
            *self.proxies.items(),
            *self.apt.items(),
            *self.mirrors.items(),
        ]

    def addresses(self) -> Iterator[tuple[str, str]]:
        """Yield (name of the setting, address) for each address in the settings."""
        for name, value in self.values:
            # A setting may have several, such as the hosts without proxy.
            for word in value.split():
                yield name, word

    def local_addresses(self) -> Iterator[tuple[str, str]]:
        """Yield (name of the setting, address) for each address on this machine's loopback."""
        for name, address in self.addresses():
            host = urlsplit(address).hostname if "://" in address else None
            if host and _is_loopback(host):
                yield name, address


def _is_loopback(host: str) -> bool:
    """Return whether a host's name or address means the machine itself."""
    return host in ("localhost", "::1") or host.endswith(".localhost") or host.startswith("127.")


def host_settings() -> HostSettings:
    """Return the settings of this machine: of its environment, its apt, and its Debian mirrors.

    Raises UserError as `settings_of` does.
    """
    apt = {}
    if shutil.which("apt-config"):
        words = ["apt-config", "dump", "--format", "%f=%v%n"]
        finished = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
        for line in finished.stdout.splitlines():
            name, _, value = line.partition("=")
            apt[name] = value
    return settings_of(os.environ, apt, debian.variables())


def settings_of(
    env: Mapping[str, str],
    apt: Mapping[str, str] | None = None,
    mirrors: Mapping[str, str] | None = None,
) -> HostSettings:
    """Return the network settings of this machine that build steps need as well.

    They are proxies, certificates, the package index, apt's settings and Debian mirrors. `env` are
    environment variables, `apt` the values of `apt-config dump`, and `mirrors` the variables that
    name mirrors. The result also has warnings about settings that a build can't use.

    Raises UserError for the address of an index, a proxy or a mirror that can't be read.
    """
    index_access.require_readable_addresses(env)
    ca, warnings = find_bundle(env)
    index, warnings_about_index = _find_index(env)
    warnings += warnings_about_index

    # Programs set and read the names in lower case or in capitals.
    proxies = {}
    for name in _PROXY_VARIABLES:
        address = env.get(name) or env.get(name.upper())
        if address:
            proxies[name] = address
    apt_settings = {}
    for name, value in (apt or {}).items():
        if value and _APT_SETTINGS.fullmatch(name):
            apt_settings[name] = value

    settings = HostSettings(
        ca=ca,
        # Build steps use uv, which gets the index of pip if none is set for uv itself. `index` has
        # the variables of both.
        index=uv.with_index_of_pip(index, index),
        proxies=proxies,
        apt=apt_settings,
        mirrors=mirrors or {},
    )
    _require_readable_proxies(settings)
    # Addresses are shown without user and password.
    for name, address in settings.local_addresses():
        shown = index_access.without_login(address)
        warnings.append(
            f"{name} names this machine ({shown}): build steps reach it only on the host's network"
        )
    return replace(settings, warnings=tuple(warnings))


def _require_readable_proxies(settings: HostSettings) -> None:
    """Raise UserError, without the address, if that of a proxy or a mirror can't be read."""
    for name, address in settings.addresses():
        try:
            urlsplit(address)
        except ValueError:
            then = (
                "write it as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with special "
                "characters of user and password as codes: / as %2F, # as %23, @ as %40, [ as %5B"
            )
            raise wrong(name, "this address can't be read: its host is not valid", then) from None


def _find_index(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables of pip and uv for the package index: its address, hosts, time limits.

    `env` are all variables of this machine's environment. Returns those for the index, by name, and
    a warning for each variable that a build can't use.
    """
    warnings = []
    for name in _FURTHER_INDEXES:
        if env.get(name):
            warnings.append(
                f"{name} names a further index: ignored, as any package could come from it; "
                "`indexes` in matrix.yaml says which packages do"
            )

    index = {}
    for name, value in sorted(env.items()):
        # Only variables with which pip and uv find their index count.
        if not value or not _INDEX_VARIABLES.fullmatch(name):
            continue
        if _is_folder(name, value):
            cause = "leads to files of this machine, which a build can't see"
            warnings.append(f"{name} {cause}: ignored")
        else:
            index[name] = index_access.strip_index_name(value)
    return index, warnings


def _is_folder(name: str, value: str) -> bool:
    """Return whether a variable of pip or uv names a folder as the index.

    The address of an index has `://`. Other variables, such as a time limit, need not.
    """
    names_index = name.endswith(("INDEX_URL", "DEFAULT_INDEX"))
    return "file:" in value or (names_index and "://" not in value)


def find_bundle(env: Mapping[str, str]) -> tuple[bytes | None, list[str]]:
    """Return the first bundle of certificates that a variable names, or None; and warnings.

    Some variables of `env`, such as SSL_CERT_FILE, may name a file of certificates; its content is
    returned. There is a warning for each variable before it that names something else.
    """
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
