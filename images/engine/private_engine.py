"""A Docker Engine of our own, for a machine that has none: installed, started and stopped here.

It lives in the project's cache folder, with a bridge of its own, so that it neither meets nor harms another engine that
is started later. It goes on running when the command ends; `stop` ends it, `wipe` also frees its disk space.
"""

import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from images.engine.client import Engine, NoEngine, connect, private_home
from images.errors import UserError, failed
from images.host import cache
from images.host.hashing import sha256

_SUBNETS = tuple(f"172.{second}.200.0/24" for second in range(31, 17, -1))
_START_SECONDS = 180.0
_STOP_SECONDS = 180.0
_SOCKET_PATH_MAX = 107  # sizeof(sockaddr_un.sun_path) - 1, unix(7)
_LONGEST_SOCKET = "exec/containerd/containerd-debug.sock"  # dockerd's own, below the folder
_DISCARDED = "discarded-"


def open_engine(
    url: str | None, *, on_progress: Callable[[str], None], install: bool = True
) -> Engine:
    """The engine to work with, rid of the containers and volumes that killed commands of this machine left there.

    One that answers (see `engine.connect`), else (`install`) a private one, installed and started. `on_progress` gets a
    sentence about each thing that is done to the machine. Raises UserError.
    """
    try:
        engine = connect(url)
    except NoEngine:
        if not install or os.geteuid() != 0 or not shutil.which("apt-get"):
            raise
        with cache.hold_lock(
            private_home() / "lock"
        ):  # two builds started together must not start two engines
            if not shutil.which("dockerd"):
                from images.host import apt

                on_progress("no Docker Engine answers: installing docker.io with apt-get")
                apt.install("docker.io", "iptables", "iproute2", "ca-certificates")
            try:
                engine = connect()  # somebody else started it while we waited, or the package did
            except NoEngine:
                delete_discarded(private_home())
                on_progress(f"starting a private Docker Engine in {private_home()}")
                engine = _start()
    if left := engine.sweep():
        on_progress(f"removed what killed commands left behind: {', '.join(left)}")
    return engine


def _start() -> Engine:
    home, log = private_home(), private_home() / "dockerd.log"
    if len(os.fsencode(home / _LONGEST_SOCKET)) > _SOCKET_PATH_MAX:
        cause = f"is too long a path for sockets ({_SOCKET_PATH_MAX} bytes at most)"
        raise failed(str(home), cause, "set XDG_CACHE_HOME to a shorter one")
    if _running() is None:
        (home / "dockerd.pid").unlink(
            missing_ok=True
        )  # a number left from before a reboot may belong to anything now
    make_bridge()
    # Bytes a packet may have on the way out: where tunnels make it small, larger ones from containers just vanish.
    ways = [one["dev"] for one in _ip("route", "show", "default") if "dev" in one]
    mtu = _ip("link", "show", "dev", ways[0])[0]["mtu"] if ways else 1500
    program = [
        "dockerd",
        f"--data-root={home / 'data'}",
        f"--exec-root={home / 'exec'}",
        f"--pidfile={home / 'dockerd.pid'}",
        f"--host=unix://{home / 'docker.sock'}",
        f"--bridge={bridge(home)}",
        f"--mtu={mtu}",
        # Apart from another engine's, should this machine run a containerd that both find.
        "--containerd-namespace=truetag",
        "--containerd-plugins-namespace=truetag-plugins",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return Engine(base_url=f"unix://{home / 'docker.sock'}")
        except UserError:
            raise
        except Exception:  # it is not there yet: each stage of the start fails in a way of its own
            time.sleep(0.2)
    process.terminate()
    process.wait()
    _remove_bridge()
    last_lines = log.read_text(errors="replace").splitlines()[-3:]
    then = f"its log is {log}; or name an engine elsewhere: --engine ssh://HOST"
    raise failed("private engine", f"dockerd did not start: {'; '.join(last_lines)}", then)


def stop(*, wipe: bool = False) -> bool:
    """End the private engine and take its bridge away. False when it wasn't running.

    `wipe`: also throw away all it keeps: images, layers, build cache. Raises UserError.
    """
    with cache.hold_lock(private_home() / "lock"):
        if (pid := _running()) is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            while _running() is not None:
                if time.monotonic() > deadline:
                    raise failed(
                        "private engine",
                        f"process {pid} does not end",
                        f"read {private_home()}/dockerd.log",
                    )
                time.sleep(0.2)
            _remove_bridge()
        if wipe:
            discard(private_home())
    return pid is not None


def _running() -> int | None:
    """The process id of our dockerd, if the number in its file is still it."""
    try:
        pid = int((private_home() / "dockerd.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if f"--data-root={private_home() / 'data'}".encode() in words else None


def bridge(home: Path) -> str:
    """The network interface of the engine that lives in `home`: stopping it must not take another's away.

    Linux takes 15 characters (IFNAMSIZ, netdevice(7)).
    """
    return f"truetag-{sha256(str(home).encode())[:6]}"


def mac_address(home: Path) -> str:
    """The MAC address of that interface: locally administered, unicast (IEEE 802, 8.4).

    Linux gives a bridge without one the lowest address of its ports (net/bridge/br_stp_if.c). That one changes as
    containers end, and those that still run send to the old one until their ARP entry expires, 15 s to 2 min
    (the same in Podman: github.com/containers/netavark/pull/833).
    """
    digest = sha256(str(home).encode())
    return ":".join(["02", *(digest[start : start + 2] for start in range(0, 10, 2))])


def free_subnet(taken: Sequence[str]) -> str:
    """A subnet for the bridge that overlaps none of the machine's (in CIDR form). Raises UserError."""
    networks = [ipaddress.ip_network(network, strict=False) for network in taken]
    for subnet in _SUBNETS:
        if not any(ipaddress.ip_network(subnet).overlaps(network) for network in networks):
            return subnet
    then = "install and start an engine yourself: `apt-get install docker.io`, `dockerd --bip ADDRESS/24 &`"
    raise failed(
        "private engine",
        f"every subnet it could use is taken ({_SUBNETS[-1]} to {_SUBNETS[0]})",
        then,
    )


def make_bridge() -> None:
    """dockerd would make `docker0`, which another engine may hold; a bridge of another name must exist beforehand."""
    name, mac = bridge(private_home()), mac_address(private_home())
    if _ip("link", "show", "dev", name):
        return
    subnet = ipaddress.ip_network(
        free_subnet([one["dst"] for one in _ip("route") if one["dst"][0].isdigit()])
    )
    for arguments in (
        ["link", "add", name, "address", mac, "type", "bridge"],
        ["address", "add", f"{next(iter(subnet.hosts()))}/{subnet.prefixlen}", "dev", name],
        ["link", "set", name, "up"],
    ):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            then = (
                "this machine forbids what an engine needs; name one elsewhere: --engine ssh://HOST"
            )
            raise failed(
                "private engine", f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}", then
            )


def _remove_bridge() -> None:
    subprocess.run(
        ["ip", "link", "delete", bridge(private_home())], capture_output=True, check=False
    )


def _ip(*arguments: str) -> list[dict[str, Any]]:
    """What `ip` knows of IPv4; nothing when it fails."""
    said = subprocess.run(
        ["ip", "-4", "-json", *arguments], capture_output=True, text=True, check=False
    ).stdout
    return json.loads(said) if said.strip() else []


def discard(home: Path) -> None:
    """Take the store of an engine that doesn't run away. Cut off at any moment, it leaves a whole store or none.

    What is mounted in there is unmounted, and nothing deleted while a mount remains. The store is renamed before
    anything in it is deleted; what an earlier call left half deleted goes too. Raises UserError.
    """
    store = home / "data"
    for point in reversed(mounts_below(store)):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
    if mounts := mounts_below(store):
        raise failed(
            str(mounts[0]),
            "is mounted, and what is in there must not be deleted",
            f"`umount {mounts[0]}`",
        )
    if store.exists():
        store.rename(Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=home)) / store.name)
    if left := delete_discarded(home):
        raise failed(
            str(home), f"could not be deleted: {left[0]}", f"`rm -rf {home}/{_DISCARDED}*`"
        )


def delete_discarded(home: Path) -> list[str]:
    """Delete what `discard` set aside and could not finish. Returns what can't be deleted."""
    failed: list[str] = []
    for folder in home.glob(f"{_DISCARDED}*"):
        shutil.rmtree(
            folder, onerror=lambda _call, path, error: failed.append(f"{path}: {error[1]}")
        )
    return failed


def mounts_below(store: Path) -> list[Path]:
    """Return the mounts at or below a store, each below those before it (proc(5))."""
    table = Path("/proc/self/mountinfo").read_text()
    points = [
        Path(re.sub(r"\\([0-7]{3})", _character, line.split()[4])) for line in table.splitlines()
    ]
    return [point for point in points if point.is_relative_to(store.resolve())]


def _character(octal: re.Match[str]) -> str:
    """Return the blank that stands in the table as a number."""
    return chr(int(octal[1], 8))
