# suite.sh PYTHON: the image's own copy of the suite, with its claims, and the commands `validate` and `doctor` on the PATH.
# -I -S keeps the environment that is judged away from the suite; bytecode is checked by hash, so its bytes never vary.
set -eu
mkdir -p /opt/truetag
cp -R /run/suite/. /opt/truetag/
"$1" -I -S -m compileall -q --invalidation-mode checked-hash /opt/truetag/validate
chmod -R a+rX /opt/truetag
for command in validate doctor; do
  printf '#!/bin/sh\nexec %s -I -S /opt/truetag/validate %s "$@"\n' "$1" "$command" >"/usr/local/bin/$command"
  chmod 755 "/usr/local/bin/$command"
done
