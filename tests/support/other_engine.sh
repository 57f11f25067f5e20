# A Docker Engine in a root file system of its own: `unshare --mount --pid --fork --kill-child sh other_engine.sh FILES HOME
# KIND`, where KIND is `classic`, `containerd` or `rootless`.
# It shares no network with the machine, whose own engine keeps its bridges and rules: slirp4netns is its way out.
set -eu
files=$1 home=$2 root=$2/root kind=$3 data=$2/data
mount --make-rprivate /
# To copy the files takes longer than the engine's start; it keeps what it has beside them, as no overlay lies over another.
mount -t overlay overlay -o "lowerdir=$files,upperdir=$home/upper,workdir=$home/work" "$root" 2>/dev/null || {
    cp --archive "$files/." "$root"
    mount --bind "$root" "$root"
}
cd "$root"
case $kind in
classic) data=/var/lib/docker ;;
containerd)
  mkdir -p etc/docker
  echo '{"features": {"containerd-snapshotter": true}}' >etc/docker/daemon.json
  ;;
esac
mkdir -p old sockets ".$data"
mount --bind "$home/data" ".$data"
mount -t proc proc proc
for folder in sys dev; do mount --rbind "/$folder" "$folder"; done
mount -t tmpfs tmpfs run
mount --bind "$home/sockets" sockets
pivot_root . old
umount -l /old

if [ "$kind" = rootless ]; then
  # On an ordinary machine, every user may open this device. RootlessKit makes the network, by slirp4netns.
  mknod -m 666 /run/tun c 10 200
  mount --bind /run/tun /dev/net/tun
  echo builder:x:1000:1000::/home/builder:/bin/sh >>/etc/passwd
  echo builder:x:1000: >>/etc/group
  for file in /etc/subuid /etc/subgid; do echo builder:100000:65536 >>$file; done
  mkdir -p /home/builder /run/user/1000
  chown builder:builder /home/builder /run/user/1000 /sockets "$data"
  exec setpriv --reuid builder --regid builder --init-groups --reset-env env XDG_RUNTIME_DIR=/run/user/1000 \
    PATH=/usr/sbin:/usr/bin sh /usr/share/docker.io/contrib/dockerd-rootless.sh --data-root "$data" \
    -H unix:///sockets/docker.sock
fi

echo nameserver 10.0.2.3 >/etc/resolv.conf
mkfifo /run/ready
data=$data unshare --net sh -c '
  ip link set lo up
  echo $$ >/run/up
  read -r _ </run/ready
  exec dockerd --data-root "$data" --exec-root /run/engine --pidfile /run/engine.pid --mtu 1500 -H unix:///sockets/docker.sock
' &
engine=$!
until [ -s /run/up ]; do sleep 0.1; done
slirp4netns --configure --mtu=1500 --ready-fd=3 "$engine" tap0 3>/run/ready &
trap 'kill -TERM $engine' TERM
while kill -0 "$engine" 2>/dev/null; do wait "$engine" || true; done
