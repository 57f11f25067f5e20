"""Ten ordinary children of an image, and what a validation finds against each: it should be nothing.

    python -m tools.false_alarms cu126-torch25 --tier static --tier cpu

The images must be there (`build NAME`); packages come from this machine's indexes. Exit status 1: something was found.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from images.building import validating
from images.commands import common
from images.config import matrix
from images.context.hosting import MOUNT, host_settings
from images.engine import private_engine
from images.hardware.inventory import GpuMode
from tools import run
from validate.claims import Tier
from validate.judging import Status

_HOST = f"RUN --mount=type=bind,source=host,target={MOUNT} . {MOUNT}/env"
_SOURCES = "-oDir::Etc::SourceList=/tmp/list"
_MIRRORED = "s#[^ ]+/debian/? #${{DEBIAN_MIRROR:-&}} #; s#[^ ]+/debian-security/? #${{DEBIAN_SECURITY_MIRROR:-&}} #"
_APT = (
    f'{_HOST} && sed -E "{_MIRRORED}" /etc/apt/sources.list > /tmp/list'
    f" && apt-get -qq {_SOURCES} update && apt-get -qq {_SOURCES} install "
    "--no-install-recommends {} && rm -r /var/lib/apt/lists/* /tmp/list"
)
_PIP = f"{_HOST} && pip install -q --no-cache-dir"
CHILDREN = {
    "plain": "LABEL org.example.team=vision",
    "code": "COPY --chown=1001 train.py /workspace/train.py",
    "settings": "ENV WANDB_MODE=offline HF_HOME=/data/hub\nEXPOSE 6006\nVOLUME /data\nSTOPSIGNAL SIGINT",
    "entrypoint": 'COPY --chmod=755 train.py /usr/local/bin/train\nENTRYPOINT ["python3", "/usr/local/bin/train"]',
    "user": "RUN useradd --create-home --uid 2001 ada\nUSER ada",
    "pip": f"{_PIP} wandb rich",
    "pip in a folder": f"{_PIP} --target /opt/own tomli\nENV PYTHONPATH=/opt/own",
    "apt": _APT.format("git-lfs htop tmux vim-tiny"),
    "apt and a server": _APT.format("openssh-server rsync sudo")
    + " && rm /etc/ssh/ssh_host_*_key*",  # hygiene/secrets tells keys
    "apt, pip and code": _APT.format("ffmpeg libgl1")
    + f"\n{_PIP} imageio\nCOPY train.py /workspace/",
}
"""What people do -> its lines, as root."""


def main(
    names: list[str],
    tier: Annotated[list[Tier], typer.Option()] = [Tier.STATIC],  # noqa: B006  typer's
    claim: Annotated[list[str], typer.Option()] = [],  # noqa: B006
) -> None:
    """Build children of images, and print each required claim that is not PASS, but for what an image goes without."""
    sources, found = matrix.load(), 0
    files = {**host_settings().files(), "train.py": b"print('trained')\n"}
    with private_engine.open_engine(None, on_progress=common.say) as engine:
        network = host_settings().network(local=engine.facts.local)
        for name in names:
            (image,) = common.select_accepted([name], sources, exactly_one=True)
            user = engine.inspect(image.local_name).user
            for number, (kind, lines) in enumerate(CHILDREN.items()):
                tag, last = (
                    f"truetag-false-alarms:{os.getpid()}-{number}",
                    "" if "USER" in lines else f"USER {user}\n",
                )
                dockerfile = f"FROM {image.local_name}\nUSER root\n{lines}\n{last}"
                engine.build({**files, "Dockerfile": dockerfile.encode()}, tag, network=network)
                try:
                    measured = validating.validate_image(
                        engine,
                        image,
                        tag,
                        sources,
                        tiers=tier,
                        gpus=GpuMode.NONE,
                        only=claim,
                        say=lambda _text: None,
                    )
                finally:
                    engine.remove(tag, force=True)
                asked = [
                    one
                    for one in measured.verdict.claims
                    if one.claim.required and not one.claim.unproven
                ]
                alarms = [one for one in asked if one.status in (Status.FAIL, Status.UNPROVEN)]
                rows = [f"  {one.status} {one.claim.key}: {one.reason}" for one in alarms]
                typer.echo(
                    "\n".join(
                        [
                            f"{name}, {kind}: {len(asked) - len(rows)} of {len(asked)} claims hold",
                            *rows,
                        ]
                    )
                )
                found += len(rows)
    raise typer.Exit(1 if found else 0)


if __name__ == "__main__":
    run(main)
