# suite.sh PYTHON FOLDER: the image's own copy of the suite, with its claims, and the commands `validate` and `doctor` on the
# PATH; what additions may not move (constraints.txt), and in FOLDER what makes the environment that they go into.
# -I -S keeps the environment that is judged away from the suite; bytecode is checked by hash, so its bytes never vary.
set -eu
mkdir -p "$2"
if [ -d /run/suite ]; then
  cp -R /run/suite/. /opt/truetag/
  "$1" -I -S -m compileall -q --invalidation-mode checked-hash /opt/truetag/validate
  for command in validate doctor; do
    printf '#!/bin/sh\nexec %s -I -S /opt/truetag/validate %s "$@"\n' "$1" "$command" >"/usr/local/bin/$command"
    chmod 755 "/usr/local/bin/$command"
  done
fi
cp /run/additions/constraints.txt /opt/truetag/
cp /run/additions/create.py /run/additions/metadata.py /run/additions/settings /run/additions/hints /run/additions/overrides.txt "$2/"
install -m 755 /run/additions/python.sh "$2/python"
# Login shells too: Debian's /etc/profile sets PATH anew, and what stands in profile.d follows in this order.
. "$2/settings"
printf 'PATH=%s/bin:$PATH\n' "$additions" >/etc/profile.d/truetag_additions.sh
# As in Debian's own images, apt leaves no archives in what is built on this one; here, where no payload moves for it.
settings=/etc/apt/apt.conf.d
if [ -d "$settings" ] && [ ! -e "$settings/docker-clean" ]; then
  clean='rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true'
  printf '%s { "%s"; };\n' DPkg::Post-Invoke "$clean" APT::Update::Post-Invoke "$clean" >"$settings/docker-clean"
fi
chmod -R a+rX /opt/truetag
