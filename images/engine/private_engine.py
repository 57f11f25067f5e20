"""A Docker Engine of our own, for a machine that has none: installed, started and stopped here.

It lives in the project's cache folder, with a bridge of its own, so that it neither meets nor harms
another engine that is started later. It goes on running when the command ends; `stop` ends it,
`wipe` also frees its disk space.
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
from images.errors import UserError, command, failed
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
    """Connect to a Docker Engine, and remove what killed commands of this machine left there.

    `url` names the engine; None: the one of DOCKER_HOST, of docker's context, or of a usual socket.
    If none was named and none answers, and `install` is set, a private engine is installed with
    apt-get, as root, and started. `on_progress` gets a sentence about each change of the machine.
    Raises NoEngine if none answers and none may be installed, and UserError if the named one does
    not answer, or the private one does not start.
    """
    try:
        engine = connect(url)
    except NoEngine:
        if not install or os.geteuid() != 0 or not shutil.which("apt-get"):
            raise
        engine = _install_and_start(on_progress)
    if removed := engine.sweep():
        on_progress(f"removed containers of killed truetag commands: {', '.join(removed)}")
    return engine


def _install_and_start(on_progress: Callable[[str], None]) -> Engine:
    """Install Docker if it is not installed, start the private engine and return it.

    The private engine is a dockerd of ours with its own folder and network bridge. If another
    engine answers by then, that is returned. `on_progress` gets a sentence about each change of the
    machine. Raises UserError if the installation or the start fails.
    """
    # Two commands that start at the same time must not start two engines.
    with cache.hold_lock(private_home() / "lock"):
        if not shutil.which("dockerd"):
            from images.host import apt

            on_progress("no Docker Engine answers: installing docker.io with apt-get")
            apt.install("docker.io", "iptables", "iproute2", "ca-certificates")
        try:
            # Another command may have started one while we waited, or the package has.
            return connect()
        except NoEngine:
            # What an interrupted `wipe` left of an earlier engine's data.
            delete_discarded(private_home())
            on_progress(f"starting a private Docker Engine in {private_home()}")
            return _start()


def _start() -> Engine:
    """Start the private engine, and wait until it answers.

    Raises UserError if its folder's path is too long, its network can't be made, or dockerd ends or
    does not answer in time.
    """
    home = private_home()
    log = home / "dockerd.log"
    if len(os.fsencode(home / _LONGEST_SOCKET)) > _SOCKET_PATH_MAX:
        cause = f"this path is too long for sockets, which may have {_SOCKET_PATH_MAX} bytes"
        then = "set XDG_CACHE_HOME to a folder with a shorter path, such as /var/tmp/cache"
        raise failed(str(home), cause, then)
    # A process number from before a reboot may belong to any program now.
    if _running() is None:
        (home / "dockerd.pid").unlink(missing_ok=True)
    make_bridge()
    process = _start_dockerd(home, log)
    engine = _wait_for_engine(home, process)
    if engine:
        return engine

    process.terminate()
    process.wait()
    _remove_bridge()
    last_lines = log.read_text(errors="replace").splitlines()[-3:]
    then = f"its log is {log}; or name an engine elsewhere: --engine ssh://HOST"
    raise failed("private engine", f"dockerd did not start: {'; '.join(last_lines)}", then)


def _start_dockerd(home: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the process of the private engine in its folder; it writes what it prints to `log`."""
    program = [
        "dockerd",
        f"--data-root={home / 'data'}",
        f"--exec-root={home / 'exec'}",
        f"--pidfile={home / 'dockerd.pid'}",
        f"--host=unix://{home / 'docker.sock'}",
        f"--bridge={bridge(home)}",
        f"--mtu={_default_mtu()}",
        # Separate from another engine's, in case both use the machine's containerd.
        "--containerd-namespace=truetag",
        "--containerd-plugins-namespace=truetag-plugins",
    ]
    with log.open("wb") as output:
        return subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )


def _wait_for_engine(home: Path, process: subprocess.Popen[bytes]) -> Engine | None:
    """Return the private engine as soon as it answers.

    None if its process ends, or does not answer in time. Raises UserError if what answers is no
    engine that we can use.
    """
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return Engine(base_url=f"unix://{home / 'docker.sock'}")
        except UserError:
            raise
        except Exception:
            # It does not answer yet: each stage of its start fails with an error of its own.
            time.sleep(0.2)
    return None


def _default_mtu() -> int:
    """Return the largest packet in bytes on the machine's default route; 1500 without a route.

    Where a tunnel makes it small, larger packets from containers would be lost.
    """
    for route in _list_network("route", "show", "default"):
        if "dev" in route:
            mtu: int = _list_network("link", "show", "dev", route["dev"])[0]["mtu"]
            return mtu
    return 1500


def stop(*, wipe: bool = False) -> bool:
    """Stop the private engine and remove its bridge. Return False if it was not running.

    `wipe`: also delete its images, layers and build cache. Raises UserError if the engine does not
    end in time, or if something can't be deleted.
    """
    with cache.hold_lock(private_home() / "lock"):
        pid = _running()  # None if it does not run
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            while _running() is not None:
                if time.monotonic() > deadline:
                    cause = f"its process {pid} did not end within {_STOP_SECONDS:.0f} s"
                    then = (
                        f"read {private_home()}/dockerd.log for the reason, then give the command "
                        "again"
                    )
                    raise failed("private engine", cause, then)
                time.sleep(0.2)
            _remove_bridge()
        if wipe:
            discard(private_home())
    return pid is not None


def _running() -> int | None:
    """Return the process ID of the private engine; None if it does not run."""
    try:
        pid = int((private_home() / "dockerd.pid").read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    # Another program may have the number by now.
    is_ours = f"--data-root={private_home() / 'data'}".encode() in arguments
    return pid if is_ours else None


def bridge(home: Path) -> str:
    """Return the name of the network bridge of the private engine in the folder `home`."""
    # It depends on the folder, so that stopping one engine never removes another's bridge. Linux
    # allows 15 characters (IFNAMSIZ, netdevice(7)).
    return f"truetag-{sha256(str(home).encode())[:6]}"


def mac_address(home: Path) -> str:
    """Return the MAC address of the bridge of the private engine in the folder `home`.

    It is always the same for a folder.
    """
    # Linux gives a bridge without an address the lowest one of its ports (net/bridge/br_stp_if.c).
    # That changes as containers end, and those that still run send to the old one until their ARP
    # entry expires, after 15 s to 2 min (as in Podman: github.com/containers/netavark/pull/833).
    digest = sha256(str(home).encode())  # in hexadecimal: two digits for a byte
    # The first byte makes it locally administered and unicast (IEEE 802, 8.4).
    octets = ["02"]
    for start in range(0, 10, 2):
        octets.append(digest[start : start + 2])
    return ":".join(octets)


def free_subnet(taken: Sequence[str]) -> str:
    """Return a subnet for the engine's bridge, such as `172.31.200.0/24`.

    It overlaps none of `taken`, the networks (or single addresses) that this machine has routes to.
    Raises UserError if each subnet of the list `_SUBNETS` overlaps one.
    """
    networks = [ipaddress.ip_network(network, strict=False) for network in taken]
    for subnet in _SUBNETS:
        if not any(ipaddress.ip_network(subnet).overlaps(network) for network in networks):
            return subnet
    cause = f"every subnet it could use is taken ({_SUBNETS[-1]} to {_SUBNETS[0]})"
    then = (
        "free one of them (`docker network ls` and `ip route` show who has it); or install and "
        "start an engine yourself (`apt-get install docker.io`, then `dockerd --bip ADDRESS/24 &`, "
        "with an address of a free private network for ADDRESS)"
    )
    raise failed("private engine", cause, then)


def make_bridge() -> None:
    """Create the network bridge of the private engine, unless it exists.

    dockerd creates only `docker0`, which another engine may use; a bridge of another name must
    exist before it starts. Raises UserError if the machine forbids it or has no free subnet.
    """
    name = bridge(private_home())
    if _list_network("link", "show", "dev", name):
        return

    # Take a subnet that this machine has no route to. A destination that is no subnet is a word,
    # such as `default`.
    destinations = [route["dst"] for route in _list_network("route")]
    taken = [destination for destination in destinations if destination[0].isdigit()]
    subnet = ipaddress.ip_network(free_subnet(taken))
    first_address = next(iter(subnet.hosts()))
    for arguments in (
        ["link", "add", name, "address", mac_address(private_home()), "type", "bridge"],
        ["address", "add", f"{first_address}/{subnet.prefixlen}", "dev", name],
        ["link", "set", name, "up"],
    ):
        process = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if process.returncode != 0:
            cause = f"`ip {' '.join(arguments)}` failed: {process.stderr.strip()}"
            then = (
                "this machine forbids what an engine needs; name one elsewhere: --engine ssh://HOST"
            )
            raise failed("private engine", cause, then)


def _remove_bridge() -> None:
    """Remove the network bridge of the private engine; errors are ignored."""
    subprocess.run(
        ["ip", "link", "delete", bridge(private_home())], capture_output=True, check=False
    )


def _list_network(*arguments: str) -> list[dict[str, Any]]:
    """Return what `ip -4 -json ARGUMENTS` lists: a row of JSON for each route, or each interface.

    Errors are ignored: if there is no such interface, `ip` prints nothing, and the list is empty.
    """
    command_line = ["ip", "-4", "-json", *arguments]
    process = subprocess.run(command_line, capture_output=True, text=True, check=False)
    if not process.stdout.strip():
        return []
    rows: list[dict[str, Any]] = json.loads(process.stdout)
    return rows


def discard(home: Path) -> None:
    """Delete the images and other data of a private engine that does not run.

    If it is interrupted at any moment, the data are either complete or gone: their folder is
    renamed before anything in it is deleted. Mounts in there are unmounted first, and nothing is
    deleted while one remains. What earlier calls could not delete is deleted too. Raises UserError
    if a mount remains, or if something can't be deleted.
    """
    store = home / "data"
    # Inner mounts first.
    for mount in reversed(mounts_below(store)):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    if mounts := mounts_below(store):
        cause = "is mounted, and what is in there must not be deleted"
        raise failed(str(mounts[0]), cause, f"`umount {mounts[0]}`, then wipe again")
    if store.exists():
        # Into a new folder `discarded-...`, which `delete_discarded` deletes.
        store.rename(Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=home)) / store.name)
    if errors := delete_discarded(home):
        cause = f"{len(errors)} of its files and folders could not be deleted"
        then = (
            f"remove what the system names as the reason, as root (`lsattr` shows an immutable "
            f"file, and `chattr -i` makes it an ordinary one), then `{command('engine', 'wipe')}` "
            "deletes what is left"
        )
        raise failed(str(home), f"{cause}: {errors[0]}", then)


def delete_discarded(home: Path) -> list[str]:
    """Delete the folders that `discard` renamed but did not delete.

    `home` is the folder of the private engine. Returns an error message for each file or folder
    that can't be deleted; empty if all are gone.
    """
    errors: list[str] = []

    def add_error(_function: object, path: str, error: Any) -> None:
        # `error` is what sys.exc_info() returns: type, exception, traceback. The text of most such
        # exceptions repeats the path.
        reason = getattr(error[1], "strerror", None) or error[1]
        errors.append(f"{path}: {reason}")

    for folder in home.glob(f"{_DISCARDED}*"):
        shutil.rmtree(folder, onerror=add_error)
    return errors


def mounts_below(folder: Path) -> list[Path]:
    """Return the mounts at or below a folder; an outer one comes before those in it."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Field 5 is the mount point; blanks in it are written as octal numbers (proc(5)).
        mount_point = re.sub(r"\\([0-7]{3})", _character, line.split()[4])
        mounts.append(Path(mount_point))
    return [mount for mount in mounts if mount.is_relative_to(folder.resolve())]


def _character(octal: re.Match[str]) -> str:
    """Return the character that is written as a backslash and an octal number."""
    return chr(int(octal[1], 8))
