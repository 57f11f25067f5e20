#!/bin/sh
# The interpreter that pip and uv install for (PIP_PYTHON, UV_PYTHON): that of an environment in the home, over the image's
# own, made when it is first needed. root without a volume there gets the image's own: so child images are built.
set -eu
here=$(dirname "$0")
. "$here/settings"
python=$additions/bin/python
if [ "$(id -u)" = 0 ] && ! grep -Eq " $home(/\.cache)? " /proc/self/mountinfo; then
  python=$image_python
elif [ ! -x "$python" ] || [ ! -w "$additions/bin" ]; then
  "$image_python" -I -B "$here/create.py" "$additions" || python=$image_python
fi
case "$* " in
  *pip*" install "*) ;;
  *) exec "$python" "$@" ;;
esac
# pip sees to the needs of what it is asked for, and of nothing else: so it is asked for what must go together with the rest, as it is
# installed: a huggingface-hub of another series parts them. Where nothing fits that, it may move them along. Not where asking would do
# more than that.
kept=$("$python" -I -c '
from importlib.metadata import distributions
print(*(f"{name}=={one.version}" for name in ("transformers", "datasets") for one in list(distributions(name=name))[:1]))')
before=
for argument in "$@"; do
  case "$argument" in
    # Such a build takes the image's own packages, and pip refuses constraints on its tools.
    --no-build-isolation) unset PIP_BUILD_CONSTRAINT ;;
    -U | -[!-]*U* | --upgrade* | --force-reinstall | -t | --target* | --prefix* | --root* | --require-hashes) kept= ;;
    --requirement=*) ! grep -q -e --hash= "${argument#*=}" 2>/dev/null || kept= ;;
  esac
  case "$before" in
    -r | --requirement) ! grep -q -e --hash= "$argument" 2>/dev/null || kept= ;;
  esac
  before=$argument
done
said=$(mktemp -d) || exec "$python" "$@"
trap 'rm -rf "$said"' EXIT
export PIP_LOG="$said/log"
# With PIP_CONSTRAINT switched off, people move torch on purpose: pip then reads torch's own metadata.
if [ -n "${PIP_CONSTRAINT:-}" ] && [ -s "$here/overrides.txt" ] &&
  "$python" -I -B "$here/metadata.py" "$here/overrides.txt" "$said/metadata"; then
  export PYTHONPATH="$said/metadata${PYTHONPATH:+:$PYTHONPATH}"
fi
code=0
if [ -n "$kept" ]; then
  "$python" "$@" $kept 2>"$said/errors" || code=$?
  if [ $code = 0 ] || ! grep -qs 'ERROR: ResolutionImpossible' "$PIP_LOG"; then
    cat "$said/errors" >&2
  else
    code=0
    rm -f "$PIP_LOG"
    "$python" "$@" $(printf '%s ' $kept | sed 's/==[^ ]*//g') || code=$?
    [ $code != 0 ] || echo "truetag: no release fits $kept: they may have moved" >&2
  fi
else
  "$python" "$@" || code=$?
fi
if [ $code = 0 ]; then
  for argument in "$@"; do
    name=$(echo "$argument" | tr A-Z_. a-z--)
    ! grep -qs "pip is looking at multiple versions of $name " "$PIP_LOG" || echo "truetag: $name: an older release was" \
      "taken, which fits ${kept:-what is installed}; \`pip install $name==X\` takes another, and they may move" >&2
  done
  exit 0
fi
# pip itself says what is in conflict, and neither why nor what to take instead.
if grep -qs CERTIFICATE_VERIFY_FAILED "$PIP_LOG"; then
  bundle=/etc/ssl/certs/ca-certificates.crt
  echo "truetag: this container does not know the authority that signed the index's certificate. Give it the host's:" \
    "\`docker run -v $bundle:/run/ca.pem:ro -e PIP_CERT=/run/ca.pem\`" >&2
  exit $code
fi
if grep -qs 'ERROR: ResolutionImpossible' "$PIP_LOG"; then
  echo "truetag: torch, CUDA's libraries and kernels stay as validated (/opt/truetag/constraints.txt)." >&2
fi
names=$(for argument in "$@"; do printf ' %s ' "${argument%%[!A-Za-z0-9._-]*}" | tr A-Z_. a-z--; done)
while IFS='	' read -r package instead; do
  case "$names" in
    *" $package "*) ;;
    *) grep -qs "requested (constraint) $package==" "$PIP_LOG" || continue ;;
  esac
  echo "truetag: $package: $instead" >&2
done <"$here/hints"
exit $code
