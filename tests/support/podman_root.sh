# Another Debian suite's podman and skopeo as root, in a root file system of its own:
# `unshare --mount --pid --fork --kill-child sh podman_root.sh ROOT HOME SOCKET COMMAND...`. HOME is /own there, for its
# storage; SOCKET, a Docker Engine's, is /run/docker.sock.
set -eu
root=$1 home=$2 socket=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p old own
mount -t proc proc proc
for folder in sys dev; do mount --rbind "/$folder" "$folder"; done
mount -t tmpfs tmpfs run
touch run/docker.sock
mount --bind "$socket" run/docker.sock
mount --bind "$home" own
pivot_root . old
umount -l /old
cd /own
exec env -i HOME=/own PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/own "$@"
