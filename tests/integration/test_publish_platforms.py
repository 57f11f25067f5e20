"""Images of two platforms under one tag, in a real registry.

Two engines pull them, and one digest promotes both.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from images.config.names import ImageName
from images.config.platforms import Platform
from images.engine import Engine, connect
from images.errors import UserError
from images.publish import attachments, signing, tags
from images.publish import publish as release
from images.publish.gate import ReleasePolicy
from images.publish.publish import PublishOptions
from images.publish.release import PublishResult, promote
from images.publish.statements import NAMES
from images.publish.verify import Check, verify
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from tests.support import thin
from tests.support.cosign_keys import cosign_verifies, key_pairs
from tests.support.debian_tools import unpacked
from tests.support.other_engine import Other
from tests.support.published import days_ago, published
from tests.support.thin import EINOPS, EINOPS_CLAIM, Thin
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine
ROW = ("cu130-torch211", "cu130-torch211-arm64")
AMD64, ARM64 = ROW
PACKAGES = (
    *(
        "libbz2-1.0",
        "libc6",
        "libexpat1",
        "liblzma5",
        "libpython3.11-minimal",
        "libpython3.11-stdlib",
    ),
    *("libssl3", "python3-minimal", "python3.11-minimal", "zlib1g"),
)
SITE = "usr/local/lib/python3.11/dist-packages"
MODULES = {"torch.py": b"", **EINOPS}


def claims(name: str) -> ClaimSet:
    """Claim that einops is installed, by its files, and that the image's own Python imports it."""
    platform = ImageName.parse(name).platform
    machine = {} if platform is Platform.AMD64 else {"machine": platform.machine}
    installed = replace(EINOPS_CLAIM, expect={**EINOPS_CLAIM.expect, **machine})
    expect = {"modules": ["einops"], "first": True, "after": True, "complaints": [], "harmless": {}}
    imports = Claim(
        check="imports",
        subject="einops",
        tier=Tier.CPU,
        probe="cpu.imports",
        statement="-",
        expect=expect,
    )
    return ClaimSet(image=name, claims=(installed, imports))


def policy(*gate: Tier, aliases: tuple[str, ...] = ()) -> ReleasePolicy:
    return ReleasePolicy(
        gate=gate or (Tier.STATIC,),
        alias_gate=gate or (Tier.STATIC,),
        aliases_of=lambda name: aliases if name == AMD64 else (),
        claims_of=lambda labels, _run: claims(labels["dev.truetag.image"]),
        row_of=lambda name: ROW if name in ROW else (name,),
    )


@pytest.fixture(scope="module")
def pair(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Thin]]:
    """Yield an image for each platform: Debian's Python with one package, really validated.

    Of arm64, only the files are.
    """
    made = {}
    for name in ROW:
        platform = ImageName.parse(name).platform
        tag = f"truetag-test-platforms:{platform.architecture}"
        engine.build(_context(name, platform), tag, platform=platform)
        made_from = {"reference": "debian", "origin": "made", "digest": ""}
        folder = tmp_path_factory.mktemp("attestation")
        made[name] = thin.validated(
            engine, tag, folder, claims(name), (Tier.STATIC, Tier.CPU), made_from
        )
        proven = Status.PASS if platform is Platform.AMD64 else Status.UNPROVEN
        assert thin.verdict_of(made[name]) is proven, (folder / "verdict.json").read_text()
    yield made
    for name in ROW:
        engine.remove(
            f"truetag-test-platforms:{ImageName.parse(name).platform.architecture}", force=True
        )


def _context(name: str, platform: Platform) -> dict[str, bytes]:
    root, packed = (
        unpacked(*PACKAGES, suite="bookworm", architecture=platform.architecture),
        io.BytesIO(),
    )
    without = ("./dev/", "./usr/share/", f"./usr/lib/{platform.machine}-linux-gnu/gconv/")
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, ".", filter=lambda one: None if one.name.startswith(without) else one)
    labels = {
        "image": name,
        "torch": "2.11.0",
        "pins": '{"einops":"0.8.2"}',
        "matrix-revision": "0123456789ab",
    }
    # No step runs a program of arm64: this machine is an x86-64 one.
    compiled = f'RUN ["python3", "-B", "-m", "compileall", "-q", "/{SITE}"]'
    lines = (
        *("FROM scratch", "ADD root.tar /", f"COPY site /{SITE}", 'ENV PATH="/usr/bin:/bin"'),
        *([compiled] if platform is Platform.AMD64 else []),
        "USER 1001",
    )
    told = (f"LABEL dev.truetag.{key}={json.dumps(value)}" for key, value in labels.items())
    files = {f"site/{path}": content for path, content in MODULES.items()}
    return {
        "Dockerfile": "\n".join((*lines, *told)).encode(),
        "root.tar": packed.getvalue(),
        **files,
    }


@pytest.fixture
def repository(registry: str, place: str) -> Repository:
    return Repository(registry, f"staging/{place}")


def publish(
    engine: Engine, pair: Mapping[str, Thin], options: PublishOptions, name: str
) -> PublishResult:
    local = release.read_local_image(
        engine, pair[name].info.digest, ImageName.parse(name), pair[name].folder
    )
    return release.publish(engine, local, options, say=print)


@pytest.fixture
def options(repository: Repository, cache: Path) -> PublishOptions:
    return PublishOptions(repository=repository, policy=policy(aliases=("latest",)), cache=cache)


def named(repository: Repository, *tags: str) -> list[str | None]:
    """The digests that tags name."""
    with Registry(repository) as found:
        return [one.digest if (one := found.find(tag)) else None for tag in tags]


def passed(checks: list[Check]) -> bool:
    return all(check.status is Status.PASS for check in checks)


def test_both_platforms_go_under_one_tag_and_each_machine_gets_its_own(
    engine: Engine, pair: Mapping[str, Thin], options: PublishOptions, trixie: Other
) -> None:
    first = publish(engine, pair, options, AMD64)
    done = publish(engine, pair, options, ARM64)
    reference = done.indexes[AMD64]
    assert named(options.repository, AMD64, "latest") == [reference.partition("@")[2]] * 2
    assert [image.name for image in done.images] == [ARM64] and not done.left_out
    with Registry(options.repository) as source:
        images = attachments.load_all(source, source.get(AMD64))
        assert named(options.repository, ARM64) == [images[1].manifest.digest]
    assert [(image.platform, image.image_id) for image in images] == [
        (str(ImageName.parse(name).platform), pair[name].info.digest) for name in ROW
    ]
    for image in images:
        assert sorted(one.predicate_type for one in image.statements) == sorted(NAMES)
    digest, found = verify(Reference(options.repository, AMD64), policy(), unsigned=True)
    assert digest == reference and passed(found)
    assert [check.subject for check in found if "gate" in check.subject] == [
        f"linux/{one} gate static" for one in ("amd64", "arm64")
    ]
    tag = f"{options.repository}:{AMD64}"
    with trixie.lend(int(options.repository.host.rpartition(":")[2])), connect(trixie.url) as other:
        for puller, name in ((engine, AMD64), (other, ARM64)):
            platform = ImageName.parse(name).platform
            pulled = puller.pull(tag, platform=platform)
            puller.untag(tag)
            assert (pulled.digest, pulled.architecture) == (
                pair[name].info.digest,
                platform.architecture,
            )
    production = thin.production(options.repository)
    promoted = promote(
        Reference(options.repository, reference.partition("@")[2]), production, options.policy
    )
    digests = named(production, AMD64, "latest", ARM64)
    assert digests == [reference.partition("@")[2]] * 2 + [images[1].manifest.digest]
    dated = {tag for tag in first.tags if tag.endswith(pair[AMD64].info.digest[7:19])}
    assert set(promoted.tags) == {*done.tags, *dated}
    assert passed(verify(Reference(production, "latest"), options.policy, unsigned=True)[1])


def test_what_another_processor_could_not_run_opens_no_index_that_asks_for_the_cpu_tier(
    engine: Engine, pair: Mapping[str, Thin], options: PublishOptions
) -> None:
    """The cpu tier of the image for arm64 is UNPROVEN: its programs do not run here."""
    strict = replace(options, policy=policy(Tier.STATIC, Tier.CPU))
    with pytest.raises(
        UserError, match=r"imports/einops \(cpu\) is UNPROVEN: programs for arm64 do not run"
    ):
        publish(engine, pair, strict, ARM64)
    assert named(options.repository, *ROW) == [None, None]
    publish(engine, pair, options, ARM64)
    (told,) = publish(engine, pair, strict, AMD64).left_out
    assert told.startswith(
        f"{AMD64} lacks linux/arm64: imports/einops (cpu) is UNPROVEN: programs for arm64"
    )
    with pytest.raises(UserError, match="no matching manifest for linux/arm64"):
        engine.pull(f"{options.repository}:{AMD64}", platform=Platform.ARM64)


def test_an_image_joins_only_what_the_same_key_signed(
    engine: Engine,
    pair: Mapping[str, Thin],
    options: PublishOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{unpacked('cosign', 'oras')}/usr/bin", prepend=os.pathsep)
    key_pairs(tmp_path, monkeypatch)
    signed, others = (
        replace(options, key=str(tmp_path / f"{name}.key")) for name in ("cosign", "other")
    )
    publish(engine, pair, others, ARM64)
    (told,) = publish(engine, pair, signed, AMD64).left_out
    assert told.startswith(f"{AMD64} lacks linux/arm64: the key signed nothing")
    done = publish(engine, pair, signed, ARM64)
    key, reference = str(tmp_path / "cosign.pub"), Reference(options.repository, AMD64)
    assert not done.left_out and cosign_verifies(done.indexes[AMD64], key), "the index is signed"
    _, found = verify(reference, policy(), key=key)
    assert passed(found), found
    assert [one.subject for one in found if "signature" in one.subject] == [
        f"linux/{one} signature" for one in ("amd64", "arm64")
    ]
    assert not passed(verify(reference, policy(), key=str(tmp_path / "other.pub"))[1])
    production = thin.production(options.repository)
    moved = promote(reference, production, options.policy, key=key)
    assert cosign_verifies(moved.indexes[AMD64], key)
    assert passed(verify(Reference(production, AMD64), policy(), key=key)[1])


@pytest.fixture
def staging(repository: Repository) -> Iterator[Registry]:
    with Registry(repository) as found:
        yield found


def rules() -> ReleasePolicy:
    return replace(policy(aliases=("latest",)), claims_of=lambda _labels, run: run.claim_set)


@pytest.fixture
def keys(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two pairs of keys, and put cosign 3.1 on the PATH.

    A test may ask for the cosign of another suite of Debian.
    """
    programs = unpacked("cosign", "oras", suite=str(getattr(request, "param", "forky")))
    monkeypatch.setenv("PATH", f"{programs}/usr/bin", prepend=os.pathsep)
    return key_pairs(tmp_path, monkeypatch)


def test_an_index_that_cosign_3_signed_is_promoted_with_its_signature(
    staging: Registry, keys: Path
) -> None:
    key, public = str(keys / "cosign.key"), str(keys / "cosign.pub")
    made = attachments.make_index(
        [published(staging, name, date=days_ago(1), name=name, key=key) for name in ROW]
    )
    staging.put(made)
    every = [attachments.load(staging, staging.get(one.digest)) for one in made.manifests]
    days = [tags.version_of(one).created for one in every]
    for one, name, day in zip(every, ROW, days, strict=True):
        names = [tags.immutable_tag(name, day, one.image_id), *([name] if name != AMD64 else [])]
        attachments.sign_image(staging, one.manifest.digest, key, public, names)
    fixed = tags.immutable_tag(AMD64, max(days), made.digest)
    attachments.sign_image(staging, made.digest, key, public, [AMD64, fixed, "latest"])
    production = thin.production(staging.repository)
    promote(Reference(staging.repository, made.digest), production, rules(), key=public)
    assert named(production, AMD64, "latest") == [made.digest] * 2
    assert cosign_verifies(f"{production}@{made.digest}", public)
    assert passed(verify(Reference(production, "latest"), rules(), key=public)[1])
    with pytest.raises(UserError, match="the key signed nothing that is attached") as refused:
        promote(
            Reference(staging.repository, made.digest),
            production,
            rules(),
            key=str(keys / "other.pub"),
        )
    assert not isinstance(refused.value, signing.CosignError), "cosign could tell"
