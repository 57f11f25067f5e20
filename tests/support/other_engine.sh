# A Docker Engine in a root file system of its own: `unshare --mount --pid --fork --kill-child sh other_engine.sh FILES HOME
# STORE`, where STORE is `classic` or `containerd`.
# It shares no network with the machine, whose own engine keeps its bridges and rules: slirp4netns is its way out.
set -eu
files=$1 home=$2 root=$2/root store=$3 data=/var/lib/docker
mount --make-rprivate /
# To copy the files takes longer than the engine's start; it keeps what it has beside them, as no overlay lies over another.
mount -t overlay overlay -o "lowerdir=$files,upperdir=$home/upper,workdir=$home/work" "$root" 2>/dev/null || {
    cp --archive "$files/." "$root"
    mount --bind "$root" "$root"
}
cd "$root"
if [ "$store" = containerd ]; then
  data=$home/data
  mkdir -p etc/docker
  echo '{"features": {"containerd-snapshotter": true}}' >etc/docker/daemon.json
fi
mkdir -p old sockets ".$data"
mount --bind "$home/data" ".$data"
mount -t proc proc proc
for folder in sys dev; do mount --rbind "/$folder" "$folder"; done
mount -t tmpfs tmpfs run
mount --bind "$home/sockets" sockets
pivot_root . old
umount -l /old
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
