"""Claims S10: what the lock's files bring is required where it is known."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from images.config.paths import CHECKOUT
from images.locking import lock_file
from images.locking.contents import FileContents
from images.validation.claims.context import ClaimContext
from images.validation.claims.provenance import provenance_claims
from tests.support import sources
from tests.support.sources import SOURCES
from validate.claims import Claim


def wheels_claim(name: str, **changed: object) -> Claim:
    """S10 wheels of an image; each row of the contents of its lock with these fields changed."""
    image = sources.image(name)
    lock = lock_file.read(image, CHECKOUT.locks)
    contents: Mapping[str, FileContents] = {
        digest: replace(row, **changed)  # type: ignore[arg-type]
        for digest, row in lock.contents.items()
    }
    context = ClaimContext.of(image, replace(lock, contents=contents), SOURCES.facts, missing={}, custom_base=False)
    (found,) = (claim for claim in provenance_claims(context) if claim.subject == "wheels")
    return found


@pytest.mark.parametrize("name", ["cu126-torch27", "cu126-torch27-sm90"])
def test_known_contents_are_required(name: str) -> None:
    found = wheels_claim(name)
    assert found.required and not found.expect["unknown"]


def test_what_nobody_has_read_of_a_changed_pruner_is_told_and_not_required() -> None:
    found = wheels_claim("cu126-torch27-sm90", pruned={})
    assert not found.required
    assert "`lock cu126-torch27-sm90`" in found.expect["unknown"]["torch"]


def test_an_image_for_all_architectures_needs_no_pruned_contents() -> None:
    assert wheels_claim("cu126-torch27", pruned={}).required


def test_a_lock_of_which_nothing_is_known_stays_required() -> None:
    found = wheels_claim("cu126-torch27", wheel=None)
    assert found.required and "torch" in found.expect["unknown"]
