"""Attach signed statements and signatures to published images, and read them back.

They are stored in the same repository as the image `sha256:DIGEST`, where cosign keeps its own:

| tag | contents |
|---|---|
| `sha256-DIGEST.att` | a layer for each statement (`statements.py`): `cosign verify-attestation` |
| `sha256-DIGEST.sig` | signatures of the image or of an index: `cosign verify` reads them |

cosign 2 and 3, Kyverno and policy-controller read both, and a registry needs no referrers API.
Whoever publishes without a key attaches unsigned statements, which cosign ignores. Statements and
signatures of other people stay where they are.
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from images.config.platforms import Platform
from images.context.labels import LABELS
from images.errors import Problem, failed, wrong
from images.publish import signing, statements
from images.publish.statements import Attestation, Statement
from images.registry import distribution
from images.registry.client import Registry
from images.registry.distribution import CREATED, OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from validate.evidence import Evidence

_ENVELOPE = "application/vnd.dsse.envelope.v1+json"
"""The media type of a layer with a statement."""
_SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
"""The media type of a layer with a document that was signed: see `sign_image`."""
_SIGNATURE = "dev.cosignproject.cosign/signature"
"""The annotation of such a layer with the signature over it, in base64."""
_LARGEST_SIGNED = 1 << 16
"""Bytes of the document that cosign signs. It has a digest and our tags; anybody who may push can
put a larger one there."""
_TYPE = "predicateType"
"""The annotation of a statement's layer with the type of its predicate."""
_TAGS, _DATE, _COUNTER = "dev.truetag.tags", "dev.truetag.date", "dev.truetag.counter"
"""Annotations of a signature: the tags that shall name the signed image, the time of signing (RFC
3339, UTC), and a number higher than those of all earlier signatures of this key in the
repository."""
_WRITES = 5
"""How often a tag is written at most while other machines write it at the same time."""
_NO_DATE = "0001-01-01T00:00:00Z"
"""The date that cosign writes into its configurations."""


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """A published image: everything that can be read without pulling its layers."""

    repository: Repository
    manifest: Manifest
    config: Mapping[str, Any]
    """The image's configuration (OCI image specification)."""
    statements: tuple[Statement, ...]

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.manifest.digest}"

    @property
    def image_id(self) -> str:
        """Return the digest of its configuration, which verdicts name."""
        return self.manifest.config.digest

    @property
    def labels(self) -> Mapping[str, str]:
        return dict((self.config.get("config") or {}).get("Labels") or {})

    @property
    def name(self) -> str:
        """Return the image name in its label; empty where it has none."""
        return self.labels.get(f"{LABELS}.image", "")

    @property
    def created(self) -> str:
        """Return when it was validated, as its first publisher wrote it.

        For images of older releases, this is the date of the build.
        """
        annotations = self.manifest.data.get("annotations") or {}
        return str(annotations.get(CREATED) or self.config.get("created") or "")

    @property
    def platform(self) -> str:
        """Return `linux/arm64`, say, from its configuration; empty where it has none."""
        return distribution.platform_of(self.config)

    @property
    def compressed_size(self) -> int:
        """Return the bytes of all layers as the registry stores them."""
        return sum(layer.size for layer in self.manifest.layers)

    def statements_of(self, predicate_type: str) -> tuple[Statement, ...]:
        return tuple(
            statement for statement in self.statements if statement.predicate_type == predicate_type
        )

    @property
    def origin_exception(self) -> str:
        """Return the reason to publish it although the origin of its layers is UNPROVEN.

        Empty where no test result has one. Raises one of `statements.UNREADABLE` for a test result
        that cannot be read; `attestations` raises UserError for it.
        """
        for test_result in self.statements_of(statements.TEST_RESULT):
            if test_result.origin_exception:
                return test_result.origin_exception
        return ""

    @property
    def attestations(self) -> tuple[Attestation, ...]:
        """Return every validation run that a test result contains, judged again.

        A test result is a statement that holds the evidence.json of validation runs and says what
        passed in them. Raises UserError for one that cannot be read, that is about another image,
        or that says more than its evidence shows.
        """
        # The content of an evidence.json -> its run.
        runs: dict[bytes, Attestation] = {}
        for test_result in self.statements_of(statements.TEST_RESULT):
            try:
                own_runs = []
                for evidence_file in test_result.evidence:
                    # Several test results may contain the same run: judge it once.
                    if evidence_file not in runs:
                        run = statements.read_attestation(evidence_file, self.reference)
                        runs[evidence_file] = run
                    own_runs.append(runs[evidence_file])
                fault = self._find_test_result_fault(test_result, own_runs)
            except statements.UNREADABLE as error:
                fault = f"its test result can't be read: {type(error).__name__}: {error}"
            if fault:
                then = "don't use this image; who publishes it must validate and publish it anew"
                raise failed(self.reference, fault, then)
        return tuple(runs.values())

    def _find_test_result_fault(self, test_result: Statement, runs: Sequence[Attestation]) -> str:
        """Return why a test result is not true of this image; empty if it is.

        `runs` are the validation runs in the test result, judged again. Raises one of
        `statements.UNREADABLE` for a malformed test result.
        """
        if self.manifest.digest not in test_result.subjects:
            subjects = ", ".join(sorted(test_result.subjects))
            return f"its test result is about another image ({subjects})"
        other_images = {run.verdict.digest for run in runs} - {self.image_id}
        if other_images:
            other = min(other_images)
            return f"its attestation is of the image {other[:19]}, not of {self.image_id[:19]}"
        # The first fault is enough.
        for fault in statements.find_test_result_faults(test_result, runs):
            return f"its test result is not what the evidence says: {fault}"
        return ""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence of every validation run. Raises UserError like `attestations`."""
        return tuple(attestation.evidence for attestation in self.attestations)


# --- reading images and their statements ----------------------------------------------------------


def load(
    source: Registry, manifest: Manifest, *, platform: str = "", with_statements: bool = True
) -> PublishedImage:
    """Read the configuration of an image and the statements that are attached to it.

    If the manifest is an index, read its image for `platform`; if not, `platform` is ignored. With
    `with_statements=False` the statements are not read, and the result has none. Raises UserError
    for an index that has no image for the platform, or if no platform is given for an index.
    """
    if manifest.is_index:
        digest = find_platform(source, manifest, platform)
        return load(source, source.get(digest), with_statements=with_statements)

    attached: tuple[Statement, ...] = ()
    if with_statements:
        attached = load_statements(source, manifest.digest)
    return PublishedImage(
        repository=source.repository,
        manifest=manifest,
        config=json.loads(source.blob(manifest.config)),
        statements=attached,
    )


def find_platform(source: Registry, index: Manifest, platform: str) -> str:
    """Return the digest of an index's image for a platform such as `linux/arm64`.

    Raises UserError if the index has no such image. An empty platform is an error, too: the message
    then lists the images of the index.
    """
    where = f"{source.repository}@{index.digest}"
    digests = {entry.platform: entry.digest for entry in index.manifests}
    if platform in digests:
        return digests[platform]
    if platform:
        cause = f"the index has no image for {platform}"
        platforms = ", ".join(digests)
        then = f"name a platform that it has ({platforms}), or publish the image for {platform}"
        raise failed(where, cause, then)
    images = [f"{source.repository}@{digest} ({name})" for name, digest in digests.items()]
    if not images:
        cause = "this is an index of images for several platforms, and it lists no image"
        raise wrong(where, cause, "give the reference of an image, or publish this one again")
    cause = "this is an index of images for several platforms, and one image is needed"
    raise wrong(where, cause, f"name one of its images: {', '.join(images)}")


def load_statements(source: Registry, digest: str) -> tuple[Statement, ...]:
    """Return the statements attached to an image, signed or not. Unreadable ones are left out.

    Each is a layer of the manifest under cosign's tag for the image (`sha256-DIGEST.att`), marked
    with its type: test result, provenance or SBOM. Other layers are left out, too. Raises UserError
    where the registry fails.
    """
    attached = source.find(attached_tag(digest, "att"))
    if attached is None:
        return ()
    loaded: list[Statement] = []
    for layer in attached.layers:
        # `_ENVELOPE` is the type of a signed statement's layer, `NAMES` has the known types.
        if layer.media_type != _ENVELOPE or layer.annotations.get(_TYPE) not in statements.NAMES:
            continue
        # Anybody who may push may put anything there: skip what is no statement.
        with suppress(*statements.UNREADABLE):
            loaded.append(Statement.from_envelope(source.blob(layer)))
    return tuple(loaded)


def load_all(source: Registry, manifest: Manifest) -> tuple[PublishedImage, ...]:
    """Return the images that an index lists, in its order, or the image of any other manifest.

    Each comes with its statements. Raises UserError for an empty index, and where the registry
    fails.
    """
    if not manifest.is_index:
        return (load(source, manifest),)
    if not manifest.manifests:
        where = f"{source.repository}@{manifest.digest}"
        raise failed(where, "this index has no images", "publish the images of this name anew")
    return tuple(load(source, source.get(entry.digest)) for entry in manifest.manifests)


def make_index(images: Sequence[PublishedImage]) -> Manifest:
    """Return an index of images for several platforms, linux/amd64 first.

    The same images always give the same bytes, in whatever order they come. Nothing is stored.
    """
    ordered = sorted(images, key=lambda image: (image.platform != Platform.AMD64, image.platform))
    entries = [replace(image.manifest.descriptor, platform=image.platform) for image in ordered]
    return distribution.index(entries)


def drop_untrusted(image: PublishedImage, key: str) -> PublishedImage:
    """Return the image with only those statements about it that this public key signed.

    Without a key (empty), all statements stay. Raises CosignError where cosign cannot tell.
    """
    if not key:
        return image
    # Statements with a signature that name this very image. Whose signature it is, cosign says.
    candidates = []
    for statement in image.statements:
        if statement.signature and image.manifest.digest in statement.subjects:
            candidates.append(statement)

    def is_trusted(statement: Statement) -> bool:
        return signing.is_signature(statement.signature, statement.signed_bytes, key)

    with ThreadPoolExecutor(max_workers=4) as pool:
        verdicts = list(pool.map(is_trusted, candidates))
    trusted = []
    for statement, verdict in zip(candidates, verdicts, strict=True):
        if verdict:
            trusted.append(statement)
    return replace(image, statements=tuple(trusted))


# --- attaching statements -------------------------------------------------------------------------


def attach(
    target: Registry, image: PublishedImage, new: Sequence[Statement], key: str
) -> PublishedImage:
    """Sign new statements about an image with a private key, and store them in the registry.

    A statement is a test result, provenance or SBOM. Without a key (empty), they are stored
    unsigned. An older test result is removed if a new one has all of its evidence. `image` must
    have only statements that count (`drop_untrusted`). Returns the image with its old and new
    statements, without removed ones. Raises UserError where cosign or the registry fails.
    """
    # The same statement may be there already.
    payloads = {statement.payload for statement in image.statements}
    added = [statement for statement in new if statement.payload not in payloads]
    if key:
        added = sign_statements(added, key)

    # An unsigned statement must not take the place of a signed one.
    superseded = []
    for statement in image.statements:
        is_superseded = any(newer.supersedes(statement) for newer in added)
        may_be_replaced = key or not statement.signature
        if is_superseded and may_be_replaced:
            superseded.append(statement)

    # The blobs first: a registry takes no manifest that names a missing one.
    for statement in added:
        target.put_blob(statement.envelope)
    update_layers(
        target,
        attached_tag(image.manifest.digest, "att"),
        add=[statement_layer(statement) for statement in added],
        remove=[statement_layer(statement) for statement in superseded],
    )
    remaining = [statement for statement in image.statements if statement not in superseded]
    return replace(image, statements=(*remaining, *added))


def sign_statements(unsigned: Sequence[Statement], key: str) -> list[Statement]:
    """Return the statements, each with a signature of this private key. Raises UserError."""

    def sign(statement: Statement) -> Statement:
        return replace(statement, signature=signing.sign_bytes(statement.signed_bytes, key))

    # cosign takes half a second for each, most of it to open the key.
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(sign, unsigned))


def statement_layer(statement: Statement) -> Descriptor:
    """Return the descriptor under which cosign finds a statement's envelope."""
    # The annotation for the signature of an image must exist, even if it is empty: see cosign's
    # pkg/oci/static.
    annotations = {_SIGNATURE: "", _TYPE: statement.predicate_type}
    return Descriptor.of(_ENVELOPE, statement.envelope, annotations=annotations)


# --- signatures of images -------------------------------------------------------------------------


class ImageSignature(NamedTuple):
    """A signature of an image or index. The last one of a key is the greatest, by its counter."""

    counter: int
    """Milliseconds since 1970, or more where a clock went back. 0 for signatures that cosign made,
    and for those of truetag that were made without comparing the image's layers."""
    date: str
    tags: str
    """The tags that shall name the image, separated by spaces."""
    content: bytes
    """The document that was signed."""
    signature: str
    """In base64. It may be anybody's until `is_by` says otherwise."""
    digest: str
    """Of the image or index."""

    def is_by(self, key: str) -> bool:
        """Return whether this public key made the signature. Raises CosignError."""
        return signing.is_signature(self.signature, self.content, key)


def sign_image(
    target: Registry, digest: str, key: str, public: str, tags: Collection[str] = ()
) -> None:
    """Sign an image or index, and the tags that shall name it, for readers with `cosign verify`.

    `digest` is that of the manifest (`sha256:...`). `key` is the private key, `public` its public
    one. Does nothing if this was signed already and none of the tags was signed for another image
    since. The tags, the date and a counter, by which signatures are ordered, are signed as
    annotations, which `cosign verify -a` reads. Raises UserError where cosign or the registry
    fails.
    """
    if is_signed_for(target, digest, public, tags):
        return
    # The counter is the time, but it must rise even if the clocks of several machines differ, or
    # one goes back.
    milliseconds = time.time_ns() // 1_000_000
    last = find_last_signature(target, public)
    last_counter = last.counter if last else 0
    counter = max(milliseconds, last_counter + 1)

    # The document that cosign signs for an image (its `simple signing`).
    document = {
        "critical": {
            "identity": {"docker-reference": str(target.repository)},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": {
            _TAGS: " ".join(sorted(tags)),
            _DATE: datetime.now(UTC).isoformat(timespec="milliseconds"),
            _COUNTER: str(counter),
        },
    }
    content = json.dumps(document, separators=(",", ":")).encode()
    target.put_blob(content)
    annotations = {_SIGNATURE: signing.sign_bytes(content, key)}
    layer = Descriptor.of(_SIMPLE_SIGNING, content, annotations=annotations)
    update_layers(target, attached_tag(digest, "sig"), add=[layer])


def is_signed_for(target: Registry, digest: str, key: str, tags: Collection[str]) -> bool:
    """Return whether a key signed an image for exactly these tags, and no other image since.

    `key` is the public key, `digest` that of the image's manifest. Signatures without a counter (a
    number that rises with each of them) do not count, such as cosign's own. Raises UserError where
    cosign or the registry fails.
    """
    text = " ".join(sorted(tags))
    is_signed = any(
        signature.counter and signature.tags == text
        for signature in find_signatures(target, digest, key)
    )
    if not is_signed:
        return False
    # A later signature may have given a tag to another image.
    for tag in tags:
        last = find_last_signature(target, key, tag)
        if last is None or last.digest != digest:
            return False
    return True


def find_signatures(source: Registry, digest: str, key: str) -> Iterator[ImageSignature]:
    """Yield the signatures of an image or index that this public key made. Raises UserError."""
    for signature in read_signatures(source, digest):
        if signature.is_by(key):
            yield signature


def find_last_signature(source: Registry, key: str, tag: str = "") -> ImageSignature | None:
    """Return the last signature that a public key made in a repository, for any image.

    With a `tag`, return the last one that signs this tag. None where there is none: deleted
    signatures leave no trace. Raises UserError where cosign or the registry fails.
    """
    # The signatures of the image `sha256:DIGEST` are under the tag `sha256-DIGEST.sig`.
    digests = []
    for name in source.tags():
        if name.endswith(".sig"):
            digests.append(name.removesuffix(".sig").replace("-", ":", 1))

    signatures: list[ImageSignature] = []
    with ThreadPoolExecutor(max_workers=8) as pool:
        for of_image in pool.map(lambda digest: list(read_signatures(source, digest)), digests):
            signatures += of_image

    # Signatures are sorted by their counter, which rises: the greatest is the last. Verifying takes
    # a call of cosign for each, so begin there.
    for signature in sorted(signatures, reverse=True):
        is_for_tag = not tag or tag in signature.tags.split()
        if is_for_tag and signature.is_by(key):
            return signature
    return None


def read_signatures(source: Registry, digest: str) -> Iterator[ImageSignature]:
    """Yield the signatures that a registry stores for an image or index. They are not verified.

    Each is a layer of the manifest under cosign's tag (`sha256-DIGEST.sig`): its content is the
    document that was signed, its annotation the signature. Whoever may push can put anything there,
    so what is not readable, too large, or about another image is left out.
    """
    attached = source.find(attached_tag(digest, "sig"))
    if attached is None:
        return
    for layer in attached.layers:
        signature = layer.annotations.get(_SIGNATURE, "")
        if layer.media_type != _SIMPLE_SIGNING or not signature or layer.size > _LARGEST_SIGNED:
            continue
        content = source.blob(layer)
        with suppress(*statements.UNREADABLE):
            document = json.loads(content)
            annotations = document["optional"] or {}
            image_signature = ImageSignature(
                counter=int(annotations.get(_COUNTER, 0)),
                date=str(annotations.get(_DATE, "")),
                tags=str(annotations.get(_TAGS, "")),
                content=content,
                signature=signature,
                digest=digest,
            )
            if document["critical"]["image"]["docker-manifest-digest"] == digest:
                yield image_signature


# --- copying to another repository ----------------------------------------------------------------


def copy_attachments(source: Registry, target: Registry, digest: str, key: str) -> None:
    """Copy what is attached to an image or index, statements and signatures, to a repository.

    Both repositories must have what `digest` names. The target keeps what it has, except test
    results of which a copied one has all evidence. With a public key, only test results that it
    signed are compared. Raises UserError where cosign or the registry fails.
    """
    superseded = find_superseded(source, target, digest, key)
    for tag in (attached_tag(digest, "att"), attached_tag(digest, "sig")):
        attached = source.find(tag)
        if attached is None:
            continue
        mount_blobs(source, target, attached)
        # What the source itself still has is copied, superseded or not. (No layer of signatures is
        # ever superseded.)
        remove = [layer for layer in superseded if layer not in attached.layers]
        update_layers(target, tag, add=attached.layers, remove=remove)


def find_superseded(source: Registry, target: Registry, digest: str, key: str) -> list[Descriptor]:
    """Return which statements about an image are obsolete in the target, as layers to remove.

    cosign keeps each statement as a layer of a manifest. A test result is obsolete if one in the
    source has all of its evidence. Only statements that this public key signed are compared;
    without a key (empty), only unsigned ones. Empty if nothing is obsolete.
    """
    # An index of several images has no statements.
    manifest = target.find(digest)
    if manifest is None or manifest.is_index:
        return []

    def load_comparable(registry: Registry) -> list[Statement]:
        """Return the statements in a repository that are compared."""
        # With a key, only what it signed is left.
        image = drop_untrusted(load(registry, manifest), key)
        return [statement for statement in image.statements if key or not statement.signature]

    new_statements = load_comparable(source)
    layers = []
    for old in load_comparable(target):
        if any(new.supersedes(old) for new in new_statements):
            layers.append(statement_layer(old))
    return layers


def mount_blobs(source: Registry, target: Registry, manifest: Manifest) -> None:
    """Link all blobs that a manifest names from the source into the target, without sending them.

    Both are repositories of the same registry. Raises UserError where the registry refuses.
    """
    # Digest -> size. A manifest may name a blob several times.
    sizes = {blob.digest: blob.size for blob in (manifest.config, *manifest.layers)}
    for digest, size in sizes.items():
        if not target.mount(digest, source.repository, size):
            cause = (
                f"the registry refuses to link {digest[:19]} from {source.repository}, which is "
                "how an image is copied between its repositories"
            )
            then = (
                f"`docker login {target.repository.host}` with an account that may read "
                f"{source.repository} and write {target.repository}; then give the command again"
            )
            raise failed(str(target.repository), cause, then)


# --- cosign's tags --------------------------------------------------------------------------------


def attached_tag(digest: str, kind: str) -> str:
    """Return the tag under which cosign keeps the attestations (`att`) or signatures (`sig`)."""
    return f"{digest.replace(':', '-')}.{kind}"


def update_layers(
    target: Registry, tag: str, add: Sequence[Descriptor], remove: Collection[Descriptor] = ()
) -> None:
    """Add layers to the manifest of one of cosign's tags and remove others; the rest stays.

    Each layer is a statement or a signature, whose blob must be in the registry already. A registry
    has no conditional write, so another machine may overwrite the tag at the same time: it is read
    back, and written again if that happened. Raises RegistryError after `_WRITES` attempts.
    """
    # Read the tag before the first write and after every one.
    for writes in range(_WRITES + 1):
        manifest = target.find(tag)
        layers = manifest.layers if manifest else ()
        is_added = all(layer in layers for layer in add)
        is_removed = not any(layer in layers for layer in remove)
        if is_added and is_removed:
            return
        if writes < _WRITES:
            others = [layer for layer in layers if layer not in remove and layer not in add]
            write_layers(target, tag, [*others, *add])

    cause = "other machines keep overwriting this tag while it is written"
    then = "give the command again when no other machine publishes this image"
    raise RegistryError(Problem(where=f"{target.repository}:{tag}", cause=cause, then=then))


def write_layers(target: Registry, tag: str, layers: Sequence[Descriptor]) -> None:
    """Store a manifest with exactly these layers under a tag, in the form that cosign writes.

    Each layer is a statement or a signature, whose blob the registry must have. It is the manifest
    of an image, because registries and clients take the tag for one. Raises RegistryError.
    """
    # The manifest of an image must name a configuration. This one has the fields that cosign
    # writes.
    data = {
        "architecture": "",
        "created": _NO_DATE,
        "history": [{"created": _NO_DATE} for _ in layers],
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        "config": {},
    }
    config = json.dumps(data, separators=(",", ":")).encode()
    target.put_blob(config)
    target.put(image_manifest(Descriptor.of(OCI_CONFIG, config), layers), tag)
