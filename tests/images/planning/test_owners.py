"""Files that may lie in an image with no package that lists them."""

import fnmatch

import pytest

from images.planning import expectations

OFFICIAL_BASE = (
    "/etc/apt/apt.conf.d/docker-autoremove-suggests",
    "/etc/apt/apt.conf.d/docker-clean",
    "/etc/apt/apt.conf.d/docker-gzip-indexes",
    "/etc/apt/sources.list.d/debian.sources",
    "/etc/dpkg/dpkg.cfg.d/docker",
    "/etc/dpkg/dpkg.cfg.d/docker-apt-speedup",
    "/etc/machine-id",
    "/usr/sbin/policy-rc.d",
    "/var/log/apt/eipp.log.xz",
    "/var/log/btmp",
    "/var/log/faillog",
    "/var/log/lastlog",
    "/var/log/wtmp",
)
"""What debuerreotype's scripts, apt and login leave in Debian's official base images."""


OTHERS = """/etc/apt/apt.conf.d/99proxy /etc/apt/sources.list.d/other.sources /etc/ld.so.preload /usr/bin/python3
/usr/lib/x86_64-linux-gnu/libnccl-net.so /opt/tool/run""".split()


@pytest.mark.parametrize("path", [*OFFICIAL_BASE, *OTHERS])
def test_what_debians_official_base_image_has_is_known_and_nothing_that_somebody_put_there(path: str) -> None:
    known = any(fnmatch.fnmatchcase(path, pattern) for pattern in expectations.GENERATED)
    assert known is (path in OFFICIAL_BASE)
