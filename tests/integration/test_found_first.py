"""What programs read because it is there: each of these faults is found by who owns a path, not by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from images.engine import Engine, ImageInfo
from images.validation import run
from tests.support.broken_images import SITE, Fault, broken
from validate import judging
from validate.claims import ClaimSet, Tier
from validate.judge import judge
from validate.judging import Status

pytestmark = pytest.mark.engine

DPKG = "/var/lib/dpkg"
HWCAPS = "usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3"
PACKAGE = (
    f"RUN mkdir -p /run/d/DEBIAN /run/d/{HWCAPS} && cp -L /lib/x86_64-linux-gnu/libz.so.1 /run/d/{HWCAPS} && "
    "cd /run/d && printf 'Package: fast-zlib\\nVersion: 1\\nArchitecture: amd64\\n' >DEBIAN/control && "
    "printf 'Maintainer: x\\nDescription: x\\n' >>DEBIAN/control && "
    f"md5sum {HWCAPS}/* >DEBIAN/md5sums && dpkg-deb -b . /run/d.deb && dpkg -i /run/d.deb && rm -r /run/d /run/d.deb "
    "/var/log/*"
)
ACCESS = "0200000001000700ffffffff02000700e903000004000500ffffffff10000700ffffffff20000500ffffffff"
"""An access list (acl(5), in the kernel's form) that lets uid 1001 write."""


def _row(name: str, command: str, claim: str, culprit: str) -> Fault:
    number, subject = claim.split()
    return Fault(name, command if command.startswith(("RUN", "ENV")) else f"RUN {command}", number, subject, culprit)


FAULTS = [
    _row(
        "a package from no archive", PACKAGE, "S10 packages", "nothing that was asked for needs the Debian package fast"
    ),
    _row(
        "a package's script",
        f"echo id >>{DPKG}/info/perl-base.postinst",
        "S10 packages",
        "perl-base is not as its archive",
    ),
    _row(
        "a program with its checksum",
        "echo '#' >>/usr/bin/c89-gcc && digest=$(md5sum </usr/bin/c89-gcc | cut -c-32) && "
        f'sed -i "s#^.*  usr/bin/c89-gcc\\$#$digest  usr/bin/c89-gcc#" {DPKG}/info/gcc.md5sums',
        "S10 packages",
        "Debian's gcc is not as its archive has it: its scripts, or its list or checksums of files",
    ),
    _row(
        "a row in a package's list",
        f"cp /bin/true /usr/local/bin/cmake && echo /usr/local/bin/cmake >>{DPKG}/info/less.list",
        "S10 packages",
        "/usr/local/bin/cmake is in the list of Debian's less, which has no checksum of it",
    ),
    _row(
        "a file that is gone",
        "rm /usr/lib/git-core/git-sh-i18n",
        "S10 packages",
        "git-sh-i18n of Debian's git is missing",
    ),
    _row(
        "a diversion", "dpkg-divert --local --rename --add /usr/bin/scp", "S10 packages", "/usr/bin/scp is diverted to"
    ),
    _row(
        "a mode to come",
        "dpkg-statoverride --add root root 4755 /usr/bin/less",
        "S10 packages",
        "/usr/bin/less is to be",
    ),
    _row(
        "a source that nobody signs",
        "echo 'deb [trusted=yes] http://x.invalid/ bookworm main' >>/etc/apt/sources.list",
        "S10 packages",
        "packages come from `deb [trusted=yes]",
    ),
    _row(
        "a package on hold",
        "echo libc6 hold | dpkg --set-selections",
        "S10 packages",
        "libc6 is in the state `hold ok inst",
    ),
    _row(
        "a login",
        "echo 'auth sufficient pam_permit.so' >/etc/pam.d/common-auth",
        "S10 packages",
        "/etc/pam.d/common-auth",
    ),
    _row(
        "a service's start",
        "printf '#!/bin/sh\\n' >/usr/sbin/policy-rc.d",
        "S10 packages",
        "/usr/sbin/policy-rc.d is not",
    ),
    _row(
        "another home",
        "sed -i 's#:/home/trainer:#:/tmp:#' /etc/passwd",
        "S10 packages",
        "/etc/passwd is not as the inst",
    ),
    _row(
        "a linker that can't start",
        "chmod -x /usr/bin/*-ld.gold",
        "S10 packages",
        "modes, owners or links of its files",
    ),
    _row(
        "an access list",
        f"python3 -c \"import os; os.setxattr('/usr/bin/curl', 'system.posix_acl_access', bytes.fromhex('{ACCESS}'))\"",
        "S10 privileges",
        "/usr/bin/curl has an access list",
    ),
    _row(
        "a user's program", "chown 1001 /usr/lib/git-core/git-remote-http", "S10 privileges", "http belongs to uid 1001"
    ),
    _row(
        "a group's program", "chgrp 7 /usr/bin/git && chmod 775 /usr/bin/git", "S10 privileges", "be changed by group 7"
    ),
    _row("a closed package", f"chmod 700 {SITE}/peft", "S10 privileges", "peft has mode 700: users can't use it"),
    _row(
        "an open folder of the PATH",
        "chmod 1777 /opt/venv/bin",
        "S10 privileges",
        "/opt/venv/bin is a folder for every",
    ),
    _row(
        "a source of another time",
        f"touch {SITE}/torch/nn/modules/linear.py",
        "S10 files",
        "linear.cpython-311.pyc is not",
    ),
    _row("an empty package", f"mkdir {SITE}/apex", "S10 files", "apex/ belongs to nobody"),
    _row(
        "a link to what will come",
        "ln -s /tmp/nvidia-smi /usr/bin/nvidia-smi",
        "S10 files",
        "/usr/bin/nvidia-smi belongs",
    ),
    _row(
        "another alternative",
        "ln -sf /usr/bin/true /etc/alternatives/c89",
        "S10 files",
        "/etc/alternatives/c89 belongs",
    ),
    _row(
        "another time zone", "ln -sf /usr/share/zoneinfo/Japan /etc/localtime", "S10 files", "/etc/localtime belongs to"
    ),
    _row(
        "a hook of apt", "touch /etc/apt/apt.conf.d/docker-hook", "S10 files", "/etc/apt/apt.conf.d/docker-hook belongs"
    ),
    _row("a script for dpkg", f"touch {DPKG}/info/zz.postinst", "S10 files", "/info/zz.postinst belongs to nobody"),
    _row(
        "settings of pyarrow",
        "touch /etc/je_arrow_malloc.conf",
        "S10 files",
        "/etc/je_arrow_malloc.conf belongs to nobody",
    ),
    _row(
        "settings of the interpreter",
        "touch /usr/bin/python3.11._pth",
        "S10 files",
        "/usr/bin/python3.11._pth belongs to",
    ),
    _row("a standard library", "touch /usr/lib/python311.zip", "S10 files", "/usr/lib/python311.zip belongs to nobody"),
    _row(
        "a loader's cache", f"ldconfig {SITE}/numpy.libs", "S10 lookup", "the loader's cache has numpy.libs/libgfortran"
    ),
    _row(
        "a library's switch",
        "ENV GLIBC_TUNABLES=glibc.malloc.check=3",
        "S8 settings",
        "sets the variable GLIBC_TUNABLES",
    ),
    _row("a locale", "ENV LC_ALL=POSIX", "S8 settings", "it sets the variable LC_ALL"),
    Fault("a signal", "", "S8", "settings", "its configuration sets StopSignal to SIGKILL", last="STOPSIGNAL SIGKILL"),
    Fault("a volume", "", "S8", "settings", "its configuration sets Volumes", last="VOLUME /data"),
    Fault("a command beside", "", "S8", "settings", "its configuration sets Healthcheck", last="HEALTHCHECK CMD true"),
    Fault("a step of children", "", "S8", "settings", "its configuration sets OnBuild", last="ONBUILD RUN true"),
    Fault("a folder to start in", "", "S8", "settings", "it starts in /tmp", last="WORKDIR /tmp"),
]


def test_what_is_found_first_belongs_to_somebody(
    engine: Engine, parent: ImageInfo, claims: ClaimSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = {(one.claim, one.subject) for one in FAULTS}
    chosen = replace(claims, claims=tuple(one for one in claims.claims if (one.id, one.subject) in looked_at))
    monkeypatch.setattr(judging, "_FAULTS_SHOWN", 200)
    with broken(engine, parent, "found-first", FAULTS) as reference:
        evidence = run.measure(engine, reference, chosen, (Tier.STATIC,), run_anyway=True)
    found = {(one.claim.id, one.claim.subject): one for one in judge(chosen, evidence, (Tier.STATIC,)).claims}
    assert {one.status for one in found.values()} == {Status.FAIL}
    missed = [one.name for one in FAULTS if one.culprit not in found[one.claim, one.subject].reason]
    assert not missed, {key: one.reason for key, one in found.items()}
