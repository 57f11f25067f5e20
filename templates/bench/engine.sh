# engine.sh ROOT HOME: a Docker Engine of another Debian suite, in a root file system of its own; HOME gets socket and data.
# images/bench/empty_engine.py starts it, in new namespaces of mounts and processes and in the network that it is in.
set -eu
root=$1 home=$2
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p old home
mount -t proc proc proc
for folder in sys dev; do mount --rbind "/$folder" "$folder"; done
mount -t tmpfs tmpfs run
mount --bind "$home" home
pivot_root . old
umount -l /old
exec dockerd --data-root /home/data --exec-root /run/engine --pidfile /run/engine.pid --bridge none --iptables=false \
    -H unix:///home/docker.sock
