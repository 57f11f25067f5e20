# Another Debian suite's podman as root, in a root file system of its own:
# `unshare --mount --pid --fork --kill-child sh podman_root.sh ROOT HOME COMMAND...`. HOME is /own there, for its storage.
set -eu
root=$1 home=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p old own
mount -t proc proc proc
for folder in sys dev; do mount --rbind "/$folder" "$folder"; done
mount -t tmpfs tmpfs run
mount --bind "$home" own
pivot_root . old
umount -l /old
cd /own
exec env -i HOME=/own PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/own "$@"
