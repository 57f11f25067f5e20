"""Envelopes and bundles, by the protocol's own test vector."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.publish.statements import dsse
from images.publish.statements.dsse import Envelope


def test_what_is_signed_is_as_the_protocol_has_it() -> None:
    """The form of protocol.md's example, with our payload type: lengths in bytes, in decimal."""
    assert dsse.signed_bytes("hellö".encode()) == b"DSSEv1 28 application/vnd.in-toto+json 6 hell\xc3\xb6"


@given(st.binary(), st.binary(min_size=1))
def test_an_envelope_is_read_back(payload: bytes, signature: bytes) -> None:
    envelope = Envelope(payload=payload, signature=base64.b64encode(signature).decode())
    assert Envelope.loads(envelope.dumps()) == envelope
    bundle = json.loads(envelope.bundle("a-key"))
    assert Envelope.loads(json.dumps(bundle["dsseEnvelope"]).encode()) == envelope
    assert bundle["verificationMaterial"] == {"publicKey": {"hint": "a-key"}}


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"no JSON",
        b'{"payloadType": "text/plain", "payload": "", "signatures": [{"sig": ""}]}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "???", "signatures": [{"sig": ""}]}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "", "signatures": []}',
    ],
)
def test_what_is_no_envelope_is_told_as_such(content: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        Envelope.loads(content)
