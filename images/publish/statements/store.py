"""Signed statements in a registry, in the two forms that cosign and admission controllers read.

| form | written by | read by |
|---|---|---|
| layers of the tag `sha256-....att` | cosign 2 | cosign 2 and 3, policy-controller, Kyverno (`type: Cosign`) |
| referrers, one Sigstore bundle each | cosign 3 | cosign 3, which then leaves the tag alone |

Both have the same envelope. What another key signed is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from images.publish.statements.dsse import BUNDLE, ENVELOPE, Envelope
from images.publish.statements.intoto import NAMES, file_name
from images.registry.client import Registry
from images.registry.distribution import (
    OCI_CONFIG,
    Descriptor,
    File,
    Manifest,
    image_manifest,
    referrers_tag,
)

KEY = "dev.truetag.key"
"""Annotation: base64 of the SHA-256 of the public key that signed, so that a newer statement can replace ours alone."""
_TYPE = "predicateType"
_BUNDLE_TYPE = "dev.sigstore.bundle.predicateType"


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A signed statement of one predicate type."""

    predicate_type: str
    envelope: Envelope


def tag(digest: str) -> str:
    """Where cosign 2 keeps the attestations of a digest."""
    return f"{referrers_tag(digest)}.att"


def read(source: Registry, digest: str, key_id: str) -> Iterator[Signed]:
    """Statements that say they are signed with a key: no signature is checked here. What can't be read is left out."""
    manifest = source.find(tag(digest))
    for layer in manifest.layers if manifest else ():
        if layer.annotations.get(KEY) != key_id:
            continue
        try:
            envelope = Envelope.loads(source.blob(layer))
        except (ValueError, LookupError, TypeError):
            continue
        yield Signed(predicate_type=layer.annotations.get(_TYPE, ""), envelope=envelope)


def write(target: Registry, subject: Descriptor, key_id: str, signed: Sequence[Signed]) -> tuple[str, ...]:
    """Store statements in both forms, in place of those of the same key and types.

    Returns the digests of replaced referrers that the registry goes on to list. Raises RegistryError.
    """
    bundles = [_attach(target, subject, key_id, one) for one in signed]
    _write_tag(target, subject.digest, key_id, signed)
    kept = {one.digest for one in bundles}
    replaced = [one.digest for one in _bundles(target, subject.digest, key_id) if one.digest not in kept]
    return tuple(digest for digest in replaced if not target.detach(subject.digest, digest))


def copy(source: Registry, target: Registry, digest: str) -> Manifest | None:
    """Remove bundles of the target that the source has replaced. Returns the manifest of the source's tag."""
    listed = {one.digest: one for one in source.referrers(digest)}
    keys = {one.annotations[KEY] for one in listed.values() if KEY in one.annotations}
    for old in [one for key in keys for one in _bundles(target, digest, key) if one.digest not in listed]:
        target.detach(digest, old.digest)
    return source.find(tag(digest))


def join(target: Registry, copied: Manifest, at: str) -> None:
    """Let a tag of cosign name what is copied beside what others left under it, else the copied manifest itself.

    The blobs of what is copied are there. Raises RegistryError.
    """
    there = target.find(at)
    layers = joined(there.layers if there else (), copied.layers)
    if layers == copied.layers:
        target.put(copied, at)
        return
    config = _config([one.digest for one in layers])
    target.put_blob(config)
    target.put(image_manifest(Descriptor.of(OCI_CONFIG, config), layers), at)


def joined(there: Sequence[Descriptor], copied: Sequence[Descriptor]) -> tuple[Descriptor, ...]:
    """What others left, then what is copied: of a key with statements among the copied, none is left. Pure."""
    keys = {one.annotations[KEY] for one in copied if KEY in one.annotations}
    return (*(one for one in there if one not in copied and one.annotations.get(KEY) not in keys), *copied)


def _attach(target: Registry, subject: Descriptor, key_id: str, one: Signed) -> Descriptor:
    name = f"{file_name(one.predicate_type)}.sigstore.json"
    annotations = {
        "dev.sigstore.bundle.content": "dsse-envelope",
        _BUNDLE_TYPE: one.predicate_type,
        KEY: key_id,
    }
    file = File(name=name, media_type=BUNDLE, content=one.envelope.bundle(key_id))
    return target.attach(subject, BUNDLE, [file], annotations)


def _bundles(source: Registry, digest: str, key_id: str) -> list[Descriptor]:
    """Referrers that `write` made with a key, of the types that it writes."""
    found = [one for one in source.referrers(digest) if one.artifact_type == BUNDLE]
    return [one for one in found if one.annotations.get(KEY) == key_id and one.annotations.get(_BUNDLE_TYPE) in NAMES]


def _write_tag(target: Registry, digest: str, key_id: str, signed: Sequence[Signed]) -> None:
    there = target.find(tag(digest))
    others = [one for one in (there.layers if there else ()) if not _is_ours(one, key_id, signed)]
    layers = [*others, *(_layer(target, key_id, one) for one in signed)]
    config = _config([one.digest for one in layers])
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), layers)
    if there is None or there.digest != manifest.digest:
        target.put_blob(config)
        target.put(manifest, tag(digest))


def _is_ours(layer: Descriptor, key_id: str, signed: Sequence[Signed]) -> bool:
    found: Mapping[str, str] = layer.annotations
    return found.get(KEY) == key_id and found.get(_TYPE) in {one.predicate_type for one in signed}


def _layer(target: Registry, key_id: str, one: Signed) -> Descriptor:
    content = one.envelope.dumps()
    target.put_blob(content)
    # The empty one is where the signature of an image stands; cosign wants the annotation (pkg/oci/static).
    annotations = {"dev.cosignproject.cosign/signature": "", _TYPE: one.predicate_type, KEY: key_id}
    return Descriptor.of(ENVELOPE, content, annotations=annotations)


def _config(digests: Sequence[str]) -> bytes:
    """A configuration as cosign writes it: registries and clients take the tag for an image."""
    empty = "0001-01-01T00:00:00Z"
    data = {
        "architecture": "",
        "created": empty,
        "history": [{"created": empty} for _ in digests],
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": list(digests)},
        "config": {},
    }
    return json.dumps(data, separators=(",", ":")).encode()
