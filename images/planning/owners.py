"""Files of an image that no package lists: what installations generate, and what something loads if it is there.

Each row says why. Sources: the maintainer scripts of Debian bookworm's and trixie's packages, read where an image had a
file that dpkg does not list; and debuerreotype, which makes Debian's official base images (its scripts
minimizing-config, debian-sources-list, fixup; no such image could be pulled where this was written).
"""

from __future__ import annotations

from collections.abc import Mapping

COPIES: Mapping[str, str] = {
    "/etc/profile": "/usr/share/base-files/profile",
    "/etc/nsswitch.conf": "/usr/share/libc-bin/nsswitch.conf",
    "/etc/motd": "/usr/share/base-files/motd",
    "/root/.bashrc": "/usr/share/base-files/dot.bashrc",
    "/root/.profile": "/usr/share/base-files/dot.profile",
    "/etc/inputrc": "/usr/share/readline/inputrc",
    "/usr/share/info/dir": "/usr/share/base-files/info.dir",
}
"""Files that a package's installation copies from one of its own."""

LINKS: Mapping[str, str] = {
    "/etc/alternatives/*": "update-alternatives",
    "/usr/bin/*": "update-alternatives: commands that several packages offer",
    "/usr/sbin/*": "update-alternatives",
    "/usr/lib/cpp": "update-alternatives",
    "/usr/lib/*-linux-gnu/*": "update-alternatives: libraries that several packages offer",
    "/etc/ssl/certs/*": "update-ca-certificates",
    "/etc/rc?.d/*": "update-rc.d",
    "/etc/rcS.d/*": "update-rc.d",
    "/etc/systemd/system/*": "deb-systemd-helper",
    "/etc/dpkg/origins/default": "base-files",
    "/etc/localtime": "tzdata, base-files",
    "/usr/local/man": "base-files",
    "/var/spool/mail": "base-files",
}
"""Links that no package lists: each must lead to a file that has an owner."""

GENERATED: Mapping[str, str] = {
    "/etc/.pwd.lock": "passwd",
    **dict.fromkeys(
        (
            f"/etc/{name}{end}"
            for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
            for end in ("", "-")
        ),
        "accounts: S10 privileges reads them",
    ),
    "/etc/apt/sources.list": "where Debian's packages come from",
    "/etc/apt/sources.list.d/debian.sources": "Debian's official base image: where its packages come from",
    "/etc/apt/apt.conf.d/docker-*": "Debian's official base image",
    "/etc/dpkg/dpkg.cfg.d/99mmdebstrap": "which files are left out of packages",
    "/etc/dpkg/dpkg.cfg.d/docker*": "Debian's official base image",
    "/usr/sbin/policy-rc.d": "Debian's official base image",
    "/etc/ca-certificates.conf": "ca-certificates",
    "/etc/ssl/certs/ca-certificates.crt": "update-ca-certificates: S10 privileges reads it",
    "/etc/environment": "empty: S7 reads it",
    "/etc/fstab": "base-files",
    "/etc/ld.so.cache": "ldconfig: S3 reads it",
    "/etc/machine-id": "empty in an image",
    "/etc/pam.d/common-*": "pam-auth-update",
    "/etc/python3/debian_config": "python3-minimal",
    "/etc/security/opasswd": "libpam-modules",
    "/etc/shells": "debianutils",
    "/etc/timezone": "tzdata",
    "/etc/mailcap": "mailcap",
    "/tmp/uv-*.lock": "uv's locks of builds from source, empty",
    "/var/cache/debconf/*": "debconf",
    "/var/cache/ldconfig/*": "ldconfig",
    "/var/lib/apt/*": "apt",
    "/var/lib/dpkg/*": "dpkg",
    "/var/lib/pam/*": "pam-auth-update",
    "/var/lib/python/*": "python3-minimal",
    "/var/lib/shells.state": "debianutils",
    "/var/lib/systemd/*": "deb-systemd-helper",
    "/var/lib/ucf/*": "ucf",
    "/var/log/*": "logs, which nothing loads: Debian's official base image has some",
    "/opt/truetag/validate/*": "the image's own copy of the suite: no verdict of ours comes from it",
    "/opt/truetag/examples/*": "the image's own copy of the examples",
    "/opt/truetag/claims.json": "the image's own copy of its claims",
    "/opt/truetag/constraints.txt": "what additions may not move: C11 tries it",
    "/opt/truetag/additions/*/hints": "what pip's users are told",
}
"""Files that no package lists, and that differ from installation to installation."""

PLUGINS: Mapping[str, str] = {
    "libnccl-net*.so*": "NCCL (its network plugin)",
    "libnccl-tuner*.so*": "NCCL (its tuner plugin)",
    "libnccl-profiler*.so*": "NCCL (its profiler plugin)",
    "libnccl-env*.so*": "NCCL (its environment plugin)",
    "libnccl-gin*.so*": "NCCL (its GPU-initiated network)",
    "libnccl-*.so*": "NCCL",
    "libcollnet*.so*": "NCCL",
    "libuct_*.so*": "UCX",
    "libucm_*.so*": "UCX",
    "libucx_*.so*": "UCX",
    "*-fi.so*": "libfabric (a provider)",
    "nvshmem_transport_*.so*": "NVSHMEM",
    "nvshmem_bootstrap_*.so*": "NVSHMEM",
    "libcufile*.so*": "cuFile",
    "libnvidia-*.so*": "the CUDA driver",
    "libcuda.so*": "everything of CUDA, in place of the driver's",
    "libcuinj*.so*": "the CUDA driver (CUDA_INJECTION64_PATH)",
    "libnvToolsExt*.so*": "torch and others (NVTX)",
    "libjemalloc*.so*": "whoever preloads an allocator",
    "libtcmalloc*.so*": "whoever preloads an allocator",
    "/etc/libibverbs.d/*": "libibverbs (a driver)",
    "/usr/lib/*/libibverbs/*": "libibverbs (a driver)",
    "/usr/lib/*/gconv/*": "glibc (a character set)",
    "/usr/lib/*/ossl-modules/*": "OpenSSL (a provider)",
    "/usr/lib/*/engines-*/*": "OpenSSL (an engine)",
    "libnss_*.so*": "glibc (name service)",
    "/etc/ld.so.preload": "every program",
    "/etc/ld.so.conf.d/*": "the dynamic loader",
    "/etc/cufile.json": "cuFile",
    "/etc/nccl.conf": "NCCL",
    "/etc/OpenCL/vendors/*": "OpenCL",
    "/etc/vulkan/*": "Vulkan",
    "/etc/profile.d/*": "login shells",
    "/etc/cron*/*": "cron",
    "/home/*/.bash*": "the shell",
    "/home/*/.profile": "the shell",
    "/home/*/.config/*": "programs of the user",
    "/home/*/.local/lib/python*": "Python (packages of the user come first)",
    "/home/*/.ssh/*": "ssh",
    "/home/*/.gitconfig": "git",
    "/etc/gitconfig": "git",
    "/root/.bash*": "root's shell",
    "sitecustomize.py": "Python, at each start",
    "usercustomize.py": "Python, at each start",
    "*.pth": "Python, at each start",
    "/usr/local/lib/python*": "the system's Python",
}
"""Files that something loads or reads if they are there -> who does. Patterns with a slash are of paths."""

PRIVILEGED: Mapping[str, str] = {
    "/usr/bin/chage": "2755",
    "/usr/bin/chfn": "4755",
    "/usr/bin/chsh": "4755",
    "/usr/bin/expiry": "2755",
    "/usr/bin/gpasswd": "4755",
    "/usr/bin/mount": "4755",
    "/usr/bin/newgrp": "4755",
    "/usr/bin/passwd": "4755",
    "/usr/bin/ssh-agent": "2755",
    "/usr/bin/su": "4755",
    "/usr/bin/umount": "4755",
    "/usr/lib/openssh/ssh-keysign": "4755",
    "/usr/sbin/unix_chkpwd": "2755",
}
"""Programs that Debian's packages bring with more rights than their caller's, and their modes."""
