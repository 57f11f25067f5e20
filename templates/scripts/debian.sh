# debian.sh PYTHON PACKAGE...: installs Debian packages, of those alone that the step's lock names where it has one, and sees that
# the suite's Python is the image's.
set -eu
. /run/host/env
python=$1
shift
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
chmod 755 "$work"  # apt fetches as a user of its own
mkdir "$work/parts"
list=/etc/apt/sources.list
if [ -e /run/locks/debian.txt ]; then
  # The base names Debian's own mirrors, whichever it was made from.
  export DEBIAN_MIRROR="${DEBIAN_MIRROR:-$(sed -n 's#^deb \([^ ]*/debian/\) .*#\1#p' $list | head -1)}"
  export DEBIAN_SECURITY_MIRROR="${DEBIAN_SECURITY_MIRROR:-$(sed -n 's#^deb \([^ ]*/debian-security/\) .*#\1#p' $list)}"
  sh /run/scripts/debian_repository.sh /run/locks/debian.txt "$work/locked"
  echo "deb [trusted=yes] file:$work/locked ./" >"$work/parts/locked.list"
elif [ -n "${DEBIAN_MIRROR:-}${DEBIAN_SECURITY_MIRROR:-}" ]; then
  # Lines and stanzas, with or without a slash; those of other archives (Ubuntu's) stay.
  for file in $list $list.d/*.list $list.d/*.sources; do
    [ ! -e "$file" ] || sed -E ${DEBIAN_MIRROR:+-e "s#[^ ]+://[^ ]*/debian/?( |\$)#$DEBIAN_MIRROR\\1#g"} \
      ${DEBIAN_SECURITY_MIRROR:+-e "s#[^ ]+://[^ ]*/debian-security/?( |\$)#$DEBIAN_SECURITY_MIRROR\\1#g"} "$file" >"$work/parts/${file##*/}"
  done
fi
: >"$work/apt.conf"
[ -z "$(ls "$work/parts")" ] || echo "Dir::Etc::SourceList \"/dev/null\"; Dir::Etc::SourceParts \"$work/parts\";" >"$work/apt.conf"
apt-get -c "$work/apt.conf" update -qq
# A layer that a crash breaks off is thrown away: dpkg need not wait for the disk after each file.
apt-get -c "$work/apt.conf" install -qq -o Dpkg::Options::=--force-unsafe-io --no-install-recommends "$@"
# Package lists and logs lie in mounts of the step; this cache holds times.
rm -rf /var/cache/ldconfig/aux-cache "$work"
found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$python" ] || { echo "this base has Python $found, the image needs $python" >&2; exit 1; }
