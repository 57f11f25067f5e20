"""Derive ten ordinary images from an image, and report what a validation finds against each.

    python -m tools.false_alarms cu126-torch25 --tier static --tier cpu

It should find nothing. The images must be there (`build NAME`); packages come from this machine's
indexes. Exit status 1: something was found.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from images.building import validating
from images.commands import common
from images.config import matrix
from images.context.hosting import MOUNT, host_settings
from images.engine import Engine, private_engine
from images.hardware.inventory import GpuMode
from tools import run
from validate.claims import Tier
from validate.judge import ClaimVerdict
from validate.judging import Status

_HOST = f"RUN --mount=type=bind,source=host,target={MOUNT} . {MOUNT}/env"
"""Begins a step that has this machine's settings for indexes and proxies."""
_MIRRORED = (
    "s#[^ ]+/debian/? #${{DEBIAN_MIRROR:-&}} #; "
    "s#[^ ]+/debian-security/? #${{DEBIAN_SECURITY_MIRROR:-&}} #"
)
"""Program of sed that puts this machine's mirrors of Debian into a list of sources. It is used
through str.format, so braces are doubled."""
_APT_GET = "apt-get -qq -oDir::Etc::SourceList=/tmp/list"
_APT = (
    f'{_HOST} && sed -E "{_MIRRORED}" /etc/apt/sources.list > /tmp/list'
    f" && {_APT_GET} update && {_APT_GET} install --no-install-recommends {{}}"
    " && rm -r /var/lib/apt/lists/* /tmp/list"
)
_PIP = f"{_HOST} && pip install -q --no-cache-dir"

_SETTINGS = """\
ENV WANDB_MODE=offline HF_HOME=/data/hub
EXPOSE 6006
VOLUME /data
STOPSIGNAL SIGINT"""
_ENTRYPOINT = """\
COPY --chmod=755 train.py /usr/local/bin/train
ENTRYPOINT ["python3", "/usr/local/bin/train"]"""
# Its host keys are removed, as they are secrets that the claim hygiene/secrets reports.
_APT_SERVER = _APT.format("openssh-server rsync sudo") + " && rm /etc/ssh/ssh_host_*_key*"
_APT_PIP_CODE = f"""\
{_APT.format("ffmpeg libgl1")}
{_PIP} imageio
COPY train.py /workspace/"""

CHILDREN = {
    "plain": "LABEL org.example.team=vision",
    "code": "COPY --chown=1001 train.py /workspace/train.py",
    "settings": _SETTINGS,
    "entrypoint": _ENTRYPOINT,
    "user": "RUN useradd --create-home --uid 2001 ada\nUSER ada",
    "pip": f"{_PIP} wandb rich",
    "pip in a folder": f"{_PIP} --target /opt/own tomli\nENV PYTHONPATH=/opt/own",
    "apt": _APT.format("git-lfs htop tmux vim-tiny"),
    "apt and a server": _APT_SERVER,
    "apt, pip and code": _APT_PIP_CODE,
}
"""What people do -> the lines of a Dockerfile that do it, as root."""


def main(
    names: list[str],
    tier: Annotated[list[Tier], typer.Option()] = [Tier.STATIC],  # noqa: B006  typer's
    claim: Annotated[list[str], typer.Option()] = [],  # noqa: B006
) -> None:
    """Derive images, and print each claim that should hold for them and does not."""
    sources = matrix.load()
    alarm_count = 0
    with private_engine.open_engine(None, on_progress=common.say) as engine:
        for name in names:
            (image,) = common.select_accepted([name], sources, exactly_one=True)
            for number, (kind, lines) in enumerate(CHILDREN.items()):
                tag = f"truetag-false-alarms:{os.getpid()}-{number}"
                build_child(engine, image.local_name, lines, tag)
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
                alarm_count += report(f"{name}, {kind}", measured.verdict.claims)
    raise typer.Exit(1 if alarm_count else 0)


def build_child(engine: Engine, parent: str, lines: str, tag: str) -> None:
    """Build an image with these lines on top of `parent`, which runs as the parent's user."""
    user = "" if "USER" in lines else f"USER {engine.inspect(parent).user}\n"
    dockerfile = f"FROM {parent}\nUSER root\n{lines}\n{user}"
    host = host_settings()
    context = {
        **host.files(),
        "train.py": b"print('trained')\n",
        "Dockerfile": dockerfile.encode(),
    }
    engine.build(context, tag, network=host.network(local=engine.facts.local))


def report(child: str, claims: Sequence[ClaimVerdict]) -> int:
    """Print the required claims that do not hold, and return how many these are.

    Claims that no such image could prove (`unproven`) are left out.
    """
    required = [row for row in claims if row.claim.required and not row.claim.unproven]
    alarms = [row for row in required if row.status in (Status.FAIL, Status.UNPROVEN)]
    holding = len(required) - len(alarms)
    typer.echo(f"{child}: {holding} of {len(required)} claims hold")
    for row in alarms:
        typer.echo(f"  {row.status} {row.claim.key}: {row.reason}")
    return len(alarms)


if __name__ == "__main__":
    run(main)
