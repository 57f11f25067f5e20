"""DSSE envelopes and Sigstore bundles: how a signed statement is written down. Pure.

Source: the DSSE protocol 1.0.2 (secure-systems-lab/dsse) and Sigstore's bundle format 0.3.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

PAYLOAD_TYPE = "application/vnd.in-toto+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def signed_bytes(payload: bytes) -> bytes:
    """What a signature is made over: DSSE's pre-authentication encoding (PAE) of a payload."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """An in-toto statement, and one signature over it."""

    payload: bytes
    signature: str
    """In base64, as cosign prints it."""

    @classmethod
    def loads(cls, content: bytes) -> Envelope:
        """Read an envelope. Raises ValueError, LookupError, TypeError."""
        data = json.loads(content)
        if data["payloadType"] != PAYLOAD_TYPE:
            raise ValueError(f"its payload is {data['payloadType']}")
        payload = base64.b64decode(data["payload"], validate=True)
        return cls(payload=payload, signature=str(data["signatures"][0]["sig"]))

    def dumps(self) -> bytes:
        return json.dumps(self._data(), separators=(",", ":")).encode()

    def bundle(self, key_id: str) -> bytes:
        """The envelope as a bundle. `key_id` tells a reader which of its keys to try."""
        data = {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": key_id}},
            "dsseEnvelope": self._data(),
        }
        return json.dumps(data, separators=(",", ":")).encode()

    def _data(self) -> dict[str, object]:
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": "", "sig": self.signature}],
        }
