# debian_toolkit.sh X.Y: Debian's nvidia-cuda-toolkit, which must be of that version.
set -eu
. /run/host/env
export DEBIAN_FRONTEND=noninteractive
sed -i '/^deb /s/ main\( .*\)*$/ main contrib non-free/' /etc/apt/sources.list
for file in /etc/apt/sources.list.d/*.sources; do
  [ ! -e "$file" ] || sed -i 's/^Components:.*/Components: main contrib non-free/' "$file"
done
apt-get update -qq
apt-get install -qq --no-install-recommends nvidia-cuda-toolkit
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
nvcc --version | grep -q "release $1," || { echo "Debian's nvcc here is not $1: $(nvcc --version | tail -2)" >&2; exit 1; }
