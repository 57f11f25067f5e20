"""Claims S8: labels, size, settings and history of the image, and what is left in its files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from images.config.platforms import Platform
from images.context import labels as image_labels
from images.context.base_context import BaseContext, Origin
from images.planning import expectations
from images.validation.claims.context import ClaimContext
from images.validation.claims.profile import ENTRYPOINT
from validate.claims import HOST_PROBE, Claim, Tier

if TYPE_CHECKING:
    from validate.checks.static.host_image import HistoryExpect, LabelsExpect, SettingsExpect, SizeExpect
    from validate.checks.static.hygiene import HygieneExpect

_OCI = "org.opencontainers.image"


def hygiene_claims(context: ClaimContext) -> Iterator[Claim]:
    """S8: what the engine's host measures (labels, size, settings, history), and what root finds in the files."""
    image = context.image
    most = expectations.MOST_BYTES
    most += expectations.MORE_BYTES_DEVEL if image.devel else 0
    most += expectations.MORE_BYTES_PROFILE if image.profile else 0
    gigabytes = most // 1000**3
    leftovers: HygieneExpect = {"leftovers": dict(expectations.LEFTOVERS)}
    rows: Mapping[str, tuple[str, str, LabelsExpect | SizeExpect | SettingsExpect | HygieneExpect | HistoryExpect]] = {
        "labels": (HOST_PROBE, "the labels are true", _named(context)),
        "size": (HOST_PROBE, f"the image is at most {gigabytes} GB", {"bytes": most}),
        "settings": (
            HOST_PROBE,
            f"it runs as a user, with{'' if image.entrypoint else 'out an'} entrypoint, and asks for the driver",
            {
                "capabilities": list(expectations.DRIVER_CAPABILITIES),
                "entrypoint": [ENTRYPOINT] if image.entrypoint else [],
            },
        ),
        "history": (HOST_PROBE, "no credential in variables, labels and build steps", {}),
        "leftovers": ("static.hygiene", "no cache, package list or temporary file of the build is left", leftovers),
        "secrets": ("static.hygiene", "no file holds a credential", leftovers),
        "home": ("static.hygiene", "the home is for every user to write to", leftovers),
    }
    for subject, (probe, statement, expect) in rows.items():
        yield Claim(id="S8", subject=subject, tier=Tier.STATIC, probe=probe, statement=statement, expect=expect)


def _named(context: ClaimContext) -> LabelsExpect:
    expect: LabelsExpect = {"labels": _labels(context)}
    if context.image.platform is not Platform.AMD64:
        expect["architecture"] = context.image.platform.architecture
    return expect


def _labels(context: ClaimContext) -> dict[str, str]:
    """Labels that say what the image is. Where it was built from differs from build to build."""
    base_context = BaseContext(reference="", origin=Origin.CUSTOM if context.custom_base else "")
    everything = image_labels.labels(context.image, base_context, context.missing)
    builds = {f"{image_labels.LABELS}.{key}" for key in ("matrix-revision", "missing")} | {f"{_OCI}.version"}
    return {name: value for name, value in everything.items() if name not in builds}
