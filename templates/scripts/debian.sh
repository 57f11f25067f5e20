# debian.sh PYTHON PACKAGE...: installs Debian packages and sees that the suite's Python is the image's.
set -eu
. /run/host/env
python=$1
shift
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# A layer that a crash breaks off is thrown away: dpkg need not wait for the disk after each file.
apt-get install -qq -o Dpkg::Options::=--force-unsafe-io --no-install-recommends "$@"
# Package lists and logs lie in mounts of the step; this cache holds times.
rm -f /var/cache/ldconfig/aux-cache
found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$python" ] || { echo "this base has Python $found, the image needs $python" >&2; exit 1; }
