"""validate.two_machines: what two nodes compare, and what each says of the other.

Real machines are in tests/integration/test_two_machines.py.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from validate import two_machines
from validate.claims import Claim, ClaimSet, Tier
from validate.two_machines import Greeting, NodesError, Peer, Place, describe_difference

ALIKE = Greeting(digest="4be0", ranks=8)


def test_nodes_with_one_image_and_as_many_gpus_can_measure_together() -> None:
    assert describe_difference(ALIKE, ALIKE, "node 1 (gpu-2)") == ""


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            Greeting(digest="4be0", ranks=4),
            "node 1 (gpu-2) can use 4 GPUs (a power of two), node 0 8: give both as many",
        ),
        (
            Greeting(digest="9c1b", ranks=4),
            "node 1 (gpu-2) has another image: its claims and checks have the digest 9c1b",
        ),
    ],
)
def test_nodes_with_other_gpus_or_another_image_cannot(second: Greeting, words: str) -> None:
    assert words in describe_difference(ALIKE, second, "node 1 (gpu-2)")


def _connect() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


@pytest.fixture
def connection() -> Iterator[tuple[Peer, socket.socket]]:
    """Yield a node as this one sees it, and the other end of the connection."""
    near, far = _connect()
    with near, far:
        yield Peer(near, "node 1 (gpu-2)"), far


@pytest.mark.parametrize("sent", [b"", b'{"status": 0', b"GET / HTTP/1.1\r\n", b"1\n"])
def test_a_node_that_ends_or_is_another_program_has_no_verdict(
    sent: bytes, connection: tuple[Peer, socket.socket]
) -> None:
    peer, far = connection
    far.sendall(sent)
    far.close()

    with pytest.raises(NodesError, match=r"node 1 \(gpu-2\) ended before there was a verdict"):
        peer.receive()


def test_what_a_node_reports_is_said_on_the_other_too(
    connection: tuple[Peer, socket.socket],
) -> None:
    peer, far = connection
    Peer(far, "node 0 (gpu-1)").send({"problem": "/shared is not shared"})

    with pytest.raises(NodesError, match=r"gpu-2.* reports: /shared is not shared"):
        peer.receive()


CLAIM = Claim(
    check="two-nodes",
    subject="ddp",
    tier=Tier.MULTINODE,
    probe="multinode.training",
    statement="gradients of DDP on two nodes are those of one process",
    expect={"device": "cpu", "ranks": 2, "nodes": 2},
)


@pytest.mark.parametrize("answer", [b"{}\n", b'{"folder": "/root", "seed": 1}\n'])
def test_another_program_that_answers_as_the_first_node_is_named_as_such(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    near, far = _connect()
    far.sendall(answer)
    monkeypatch.setattr(two_machines, "_connect_to_first", lambda _place: near)
    place = Place(hosts=["127.0.0.1", "127.0.0.2"], node=1, shared=tmp_path)

    with near, far, pytest.raises(NodesError, match="another program than validate answered as"):
        two_machines.join(place, ClaimSet(image="cu126-torch25", claims=(CLAIM,)))


def test_the_first_node_does_not_wait_for_strangers_that_connect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(two_machines, "_PORT", port)
    place = Place(hosts=["127.0.0.1", "127.0.0.2"], node=0, shared=tmp_path)
    listener = two_machines._listen()
    monkeypatch.setattr(two_machines, "_listen", lambda: listener)
    sent = [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"5\n",
        b"[]\n",
        b"{}\n",
        b'{"digest": "4be0", "ranks": 8}\n',
    ]
    monkeypatch.setattr(two_machines, "_ATTEMPT_SECONDS", 0.1)
    silent = socket.create_connection(("127.0.0.1", port))
    for text in sent:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(text)

    with silent:
        _, greeting = two_machines._accept_second(place)

    assert greeting == ALIKE


def test_a_port_that_another_program_has_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(two_machines, "_PORT", port)

        with pytest.raises(NodesError, match=f"port {port} of this machine can't be used"):
            two_machines._listen()
