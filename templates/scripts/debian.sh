# debian.sh PYTHON PACKAGE...: installs Debian packages, of those alone that the step's lock names where it has one, and sees that
# the suite's Python is the image's.
set -eu
. /run/host/env
python=$1
shift
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
sources= list=/etc/apt/sources.list
if [ -e /run/locks/debian.txt ]; then
  # The base names Debian's own mirrors, whichever it was made from.
  export DEBIAN_MIRROR="${DEBIAN_MIRROR:-$(sed -n 's#^deb \([^ ]*/debian/\) .*#\1#p' $list | head -1)}"
  export DEBIAN_SECURITY_MIRROR="${DEBIAN_SECURITY_MIRROR:-$(sed -n 's#^deb \([^ ]*/debian-security/\) .*#\1#p' $list)}"
  sh /run/scripts/debian_repository.sh /run/locks/debian.txt "$work/locked"
  sources="deb [trusted=yes] file:$work/locked ./"
elif [ -n "${DEBIAN_MIRROR:-}${DEBIAN_SECURITY_MIRROR:-}" ] && [ -e $list ]; then
  sources=$(sed "s#[^ ]*/debian/ #${DEBIAN_MIRROR:-&} #; s#[^ ]*/debian-security/ #${DEBIAN_SECURITY_MIRROR:-&} #" $list)
fi
: >"$work/apt.conf"
if [ -n "$sources" ]; then
  echo "$sources" >"$work/sources.list"
  echo "Dir::Etc::SourceList \"$work/sources.list\"; Dir::Etc::SourceParts \"/dev/null\";" >"$work/apt.conf"
fi
apt-get -c "$work/apt.conf" update -qq
# A layer that a crash breaks off is thrown away: dpkg need not wait for the disk after each file.
apt-get -c "$work/apt.conf" install -qq -o Dpkg::Options::=--force-unsafe-io --no-install-recommends "$@"
# Package lists and logs lie in mounts of the step; this cache holds times.
rm -rf /var/cache/ldconfig/aux-cache "$work"
found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$python" ] || { echo "this base has Python $found, the image needs $python" >&2; exit 1; }
