"""Programs of another processor on this machine: qemu's user mode emulation, registered with the kernel (binfmt_misc).

Registered with the flag F, the kernel holds the emulator open, so that it serves containers, which do not have its file
(Linux, Documentation/admin-guide/binfmt-misc.rst).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from images.config.platforms import Platform
from images.errors import UserError, failed
from images.host import apt

PACKAGE = "qemu-user-static"
_REGISTRY = Path("/proc/sys/fs/binfmt_misc")
_RULES = Path("/usr/lib/binfmt.d")
"""Where Debian's package says how its emulators are registered (binfmt.d(5))."""


def require(
    platform: Platform, on_progress: Callable[[str], None], *, registry: Path = _REGISTRY, rules: Path = _RULES
) -> None:
    """See that this machine runs programs of a platform: installs and registers qemu where it may.

    `on_progress` gets a line about what is done to the machine. Raises UserError where it may not, or where the kernel
    refuses.
    """
    if registered(platform, registry):
        return
    if os.geteuid() != 0:
        raise _unable(platform, "this user may not register an emulator")
    if not (registry / "register").exists():
        on_progress(f"mounting binfmt_misc at {registry}, by which the kernel finds emulators")
        mount = ["mount", "-t", "binfmt_misc", "binfmt_misc", str(registry)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise _unable(platform, f"binfmt_misc can't be mounted: {done.stderr.strip()}")
    rule = rules / f"qemu-{platform.machine}.conf"
    if not registered(platform, registry) and not rule.is_file():
        if not shutil.which("apt-get"):
            raise _unable(platform, f"{PACKAGE} is not installed, and there is no apt-get")
        on_progress(f"installing {PACKAGE} with apt-get: this machine runs {platform.spoken} programs with it")
        apt.install(PACKAGE)
    if not registered(platform, registry):  # with systemd the package has done it
        on_progress(f"registering qemu for {platform.spoken} programs with the kernel")
        try:
            line = next(line for line in rule.read_text().splitlines() if line.startswith(":"))
            (registry / "register").write_text(line)
        except (OSError, StopIteration) as error:
            raise _unable(platform, f"{rule} can't be registered: {error or 'it holds no rule'}") from None
    if not registered(platform, registry):
        raise _unable(platform, "the kernel did not take the emulator's registration")


def registered(platform: Platform, registry: Path = _REGISTRY) -> str:
    """The emulator that containers get for a platform's programs; empty: none, or one that they would not find."""
    try:
        text = (registry / f"qemu-{platform.machine}").read_text()
    except OSError:
        return ""
    interpreter, flags = (re.search(rf"^{key}:? (\S+)", text, re.MULTILINE) for key in ("interpreter", "flags"))
    works = text.startswith("enabled") and flags and "F" in flags[1]
    return interpreter[1] if works and interpreter else ""


def version() -> str:
    """What Debian's package has, `7.2.22`; empty where it is not installed by dpkg."""
    asked = ["dpkg-query", "--show", "--showformat", "${Version}", PACKAGE]
    done = subprocess.run(asked, capture_output=True, text=True, check=False) if shutil.which("dpkg-query") else None
    return done.stdout.strip() if done and done.returncode == 0 else ""


def _unable(platform: Platform, why: str) -> UserError:
    then = f"as root: `apt-get install {PACKAGE}`; or an engine on such a machine: --engine ssh://HOST"
    return failed(str(platform), f"this machine can't run {platform.spoken} programs: {why}", then)
