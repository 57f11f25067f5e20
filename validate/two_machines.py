"""Joins the `validate` of two machines, so that they measure the tier multinode together.

    validate --nodes HOST,HOST --shared FOLDER

Slurm, Ray or a person starts this on both machines at once. The second node connects to the first,
and the connection stays open until the verdict: if one of them ends early, so does the other. Each
message is one line of JSON.
"""

import hashlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from validate import terminal
from validate.checks.multigpu import _launch
from validate.claims import ClaimSet
from validate.harness.forked import find_descendants
from validate.nodes import ADDRESSES_VARIABLE, FOLDER_VARIABLE, NODE_VARIABLE, NODES

CANNOT_MEASURE = 2
"""The exit status if the two machines can't measure together."""
_PORT = 29411
"""The first node listens there. Linux gives ports from 32768 on to programs that ask for any."""
WAIT_SECONDS = 600.0
"""How long to wait for the other node, which may still be fetching the image."""
_RETRY_SECONDS = 0.5
_ATTEMPT_SECONDS = 5.0
_LONGEST_LINE = 1 << 16
"""How many characters of a message are read. What truetag sends is shorter."""
_FOLDER_PREFIX = "truetag-nodes-"
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""After 60 s of silence the kernel takes the other machine for dead (tcp(7))."""


class NodesError(Exception):
    """The two machines can't measure together. The text has the cause and what to do."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of the two nodes this machine is, by the command line."""

    hosts: Sequence[str]
    """The name or address of each node."""
    node: int
    shared: Path
    """A folder that both nodes see. Its path may differ on them."""

    def describe(self, node: int) -> str:
        """Return what messages call a node: `node 1 (gpu-17)`."""
        return f"node {node} ({self.hosts[node]})"

    @property
    def other(self) -> str:
        """Return what messages call the other node."""
        return self.describe(1 - self.node)


class Peer:
    """The other node's `validate`, over a connection that is open until the verdict."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        # A stranger may have connected and be silent, a port scanner for example: wait no longer.
        connection.settimeout(WAIT_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self.name = name
        self._connection = connection
        self._lines = connection.makefile(encoding="utf-8")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. It is lost if the other node has ended, which `receive` reports."""
        with suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """Return the other node's next message.

        Raises NodesError if the other node ends before that, is silent for WAIT_SECONDS, or reports
        a problem.
        """
        try:
            # An object: what a stranger sends may be any other JSON, or none.
            message = dict(json.loads(self._lines.readline(_LONGEST_LINE)))
        except (OSError, ValueError, TypeError) as error:
            raise NodesError(
                f"{self.name} ended before there was a verdict: see what its task printed, then "
                "start both again"
            ) from error
        if "problem" in message:
            raise NodesError(f"{self.name} reports: {message['problem']}")
        return message

    def receive_in_thread(self) -> "Future[Any]":
        """Return the other node's next message, the one at its end, as a future.

        If the other node ends without it, this process ends, too.
        """
        message: Future[Any] = Future()
        # Measuring takes longer than WAIT_SECONDS. The kernel notices a dead machine (_KEEPALIVE).
        self._connection.settimeout(None)

        def read() -> None:
            """Wait for the message."""
            try:
                message.set_result(self.receive())
            except NodesError as error:
                end_process(str(error))

        threading.Thread(target=read, daemon=True).start()
        return message


class Greeting(TypedDict):
    """What the second node tells the first."""

    digest: str  # of the image's claims, and of the suite that measures them
    ranks: int  # how many processes it starts, one on each GPU


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What both nodes agreed on."""

    claims: ClaimSet
    """Those of two nodes, for as many ranks as both start together."""
    folder: Path
    """Is shared, and of this run only."""
    variables: Mapping[str, str]
    """Environment variables of the probes (validate/nodes.py)."""
    seed: int
    """What the probes of both draw random inputs with."""
    peer: Peer
    message: "Future[Any]"
    """What the other node tells at its end."""


def join(place: Place, claims: ClaimSet) -> Meeting:
    """Connect to the other node, and return what both agreed on. Node 0 proposes.

    Once they have agreed, this process ends with CANNOT_MEASURE (2) if the other one ends early. If
    it is stopped itself, it first ends the programs of the checks, which it starts after this.

    `claims` are those of the tier multinode. Raises NodesError if the two can't measure together,
    and DriverError if the GPUs can't be counted.
    """
    check_hosts(place)
    # All claims of the tier expect the same number of ranks, which are processes of one GPU each.
    ranks = _launch.count_ranks(claims.claims[0])
    # Where claims have a number, as in a rehearsal on the CPU, it is that of both nodes together.
    # Else it is the number of this machine's GPUs.
    if claims.claims[0].expect["ranks"]:
        ranks //= NODES
    own = Greeting(digest=digest_of(claims), ranks=ranks)
    try:
        if place.node == 0:
            peer, greeting = _accept_second(place)
            folder, seed = _lead(place, peer, own, greeting)
        else:
            peer = Peer(_connect_to_first(place), place.other)
            folder, seed = _follow(place, peer, own)
    except KeyError as error:
        raise NodesError(
            f"another program than validate answered as {place.other}: see what uses port {_PORT} "
            "on the two machines, then start both again"
        ) from error

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end_process("stopped"))
    expected = {"ranks": NODES * ranks, "machines": NODES}
    for_both = [replace(claim, expect={**claim.expect, **expected}) for claim in claims.claims]
    return Meeting(
        claims=replace(claims, claims=tuple(for_both)),
        folder=folder,
        variables={
            NODE_VARIABLE: str(place.node),
            ADDRESSES_VARIABLE: ",".join(place.hosts),
            FOLDER_VARIABLE: str(folder),
        },
        seed=seed,
        peer=peer,
        message=peer.receive_in_thread(),
    )


def check_hosts(place: Place) -> None:
    """Raise NodesError if a host's name is not known here, or if this machine is another one."""
    addresses = []
    for host in place.hosts:
        try:
            addresses.append(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0])
        except OSError as error:
            raise NodesError(
                f"this machine does not know the host {host} of --nodes ({error.strerror}): see "
                f"what `getent hosts {host}` prints, or name both nodes by their addresses"
            ) from error

    # Only an address of this machine can be bound.
    family, _, _, _, address = addresses[place.node]
    try:
        socket.create_server(address, family=family).close()
    except OSError as error:
        raise NodesError(
            f"this machine ({socket.gethostname()}) is to be {place.describe(place.node)}, and has "
            f"no address {address[0]}: give each node its own number by --node, and name the hosts "
            "in the same order on both"
        ) from error


def digest_of(claims: ClaimSet) -> str:
    """Return a digest of the image's claims and of the suite that measures them."""
    digest = hashlib.sha256(claims.dumps().encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _accept_second(place: Place) -> tuple[Peer, Greeting]:
    """Wait for the second node, and return it and what it tells. Raises NodesError.

    Whoever connects and does not introduce itself at once as a second node does, such as a port
    scanner, is passed over.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        with _listen() as listener:
            while True:
                listener.settimeout(max(0.0, deadline - time.monotonic()))
                connection, _ = listener.accept()
                peer = Peer(connection, place.other)
                connection.settimeout(_ATTEMPT_SECONDS)
                with suppress(NodesError, KeyError):
                    message = peer.receive()
                    connection.settimeout(WAIT_SECONDS)
                    return peer, Greeting(digest=message["digest"], ranks=message["ranks"])
    except OSError as error:
        raise NodesError(
            f"{place.other} did not come to port {_PORT} of this machine within {WAIT_SECONDS:g} s "
            f"({error}): start one task a machine, see what that one printed (has the machine the "
            "image?), then start both again"
        ) from error


def _listen() -> socket.socket:
    """Return a socket that waits for the second node, also by IPv6 where there is any.

    Raises NodesError if another program has the port.
    """
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", _PORT), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", _PORT))
    except OSError as error:
        raise NodesError(
            f"port {_PORT} of this machine can't be used ({error.strerror}): see which program has "
            f"it (`ss -tlnp 'sport = :{_PORT}'`), another validate --nodes for example"
        ) from error


def _connect_to_first(place: Place) -> socket.socket:
    """Connect to the first node as soon as it listens. Raises NodesError if it does not."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return socket.create_connection((place.hosts[0], _PORT), _ATTEMPT_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                raise NodesError(
                    f"{place.other} did not answer at port {_PORT} within {WAIT_SECONDS:g} s "
                    f"({error}): see what its task printed (has the machine the image?); if it "
                    "waits there, let its firewall pass TCP on all ports, as torch and NCCL need it"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _lead(place: Place, peer: Peer, own: Greeting, second: Greeting) -> tuple[Path, int]:
    """Compare the second node with this first one; return a new shared folder, and the run's seed.

    Raises NodesError if they differ, or if one of them may not write to the folder.
    """
    difference = describe_difference(own, second, place.other)
    if difference:
        raise _reported(peer, difference)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=place.shared))
    except OSError as error:
        raise _reported(
            peer,
            f"nothing can be written to {place.shared} ({error.strerror}): mount a folder there "
            f"that the user ID {os.geteuid()} may write to, or name another by --shared",
        ) from error
    seed = secrets.randbelow(1 << 31)
    peer.send({"folder": folder.name, "seed": seed})
    # The second node sees the folder, or reports that it does not.
    peer.receive()
    return folder, seed


def _follow(place: Place, peer: Peer, own: Greeting) -> tuple[Path, int]:
    """Introduce this second node to the first; return the folder and the seed that it chose.

    Raises NodesError if the first node refuses, or if the folder is not shared.
    """
    peer.send(own)
    message = peer.receive()
    name = str(message["folder"])
    # Another program may answer there: take no path that leads out of the folder.
    if not name.startswith(_FOLDER_PREFIX) or "/" in name:
        raise KeyError("folder")
    folder = place.shared / name
    if not os.access(folder, os.W_OK):
        raise _reported(
            peer,
            f"{place.shared} is not shared: {place.other} made {folder.name} there, and "
            f"{place.describe(place.node)} can't write to it; mount the same folder on both, for "
            "the same user, and name it by --shared",
        )
    peer.send({})
    return folder, message["seed"]


def _reported(peer: Peer, problem: str) -> NodesError:
    """Return the error for a problem, after the other node was told of it."""
    peer.send({"problem": problem})
    return NodesError(problem)


def describe_difference(first: Greeting, second: Greeting, name: str) -> str:
    """Return why two nodes can't measure together; empty if they can. `name`: the second's."""
    if first["digest"] != second["digest"]:
        return (
            f"{name} has another image: its claims and checks have the digest {second['digest']}, "
            f"those of node 0 {first['digest']}; start the same image on both (IMAGE@sha256:...)"
        )
    if first["ranks"] != second["ranks"]:
        return (
            f"{name} can use {second['ranks']} GPUs (a power of two), node 0 {first['ranks']}: "
            "give both as many (`srun --gpus-per-node=N`)"
        )
    return ""


def end_process(cause: str) -> NoReturn:
    """End this process and all that it has started, with a message and CANNOT_MEASURE."""
    sys.stderr.write(f"validate: {terminal.printable(cause)}\n")
    sys.stderr.flush()
    # Halt all of them before any is killed: the suite would start the next probe, and a launcher
    # may just be starting its ranks.
    halted: list[int] = []
    while True:
        running = [pid for pid in find_descendants(os.getpid()) if pid not in halted]
        if not running:
            break
        send_signal(running, signal.SIGSTOP)
        halted += running
    # Those that the suite waits for come first in the list, and are killed last.
    send_signal(reversed(halted), signal.SIGKILL)
    os._exit(CANNOT_MEASURE)


def send_signal(process_ids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may have ended."""
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)
