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
# pip sees to the needs of what it is asked for, and of nothing else: so it is asked for what must go together with the rest, as it is.
# Where nothing fits that, it may move them along. Not where asking would do more than that.
before=
for argument in "$@"; do
  case "$argument" in
    -U | -[!-]*U* | --upgrade* | --force-reinstall | -t | --target* | --prefix* | --root* | --require-hashes) kept= ;;
    --requirement=*) ! grep -q -e --hash= "${argument#*=}" 2>/dev/null || kept= ;;
  esac
  case "$before" in
    -r | --requirement) ! grep -q -e --hash= "$argument" 2>/dev/null || kept= ;;
  esac
  before=$argument
done
said=
if [ -n "$kept" ] && said=$(mktemp); then
  trap 'rm -f "$said"' EXIT
  code=0
  "$python" "$@" $kept 2>"$said" || code=$?
  if [ $code = 0 ] || ! grep -q ResolutionImpossible "$said"; then
    cat "$said" >&2
  else
    echo "truetag: no release fits $kept: they may move" >&2
    code=0
    "$python" "$@" $(printf '%s ' $kept | sed 's/==[^ ]*//g') || code=$?
  fi
else
  code=0
  "$python" "$@" || code=$?
fi
# pip itself says what is in conflict, and not what to take instead.
[ $code != 0 ] || exit 0
echo "truetag: torch, CUDA's libraries and kernels stay as validated (/opt/truetag/constraints.txt)." >&2
for argument in "$@"; do
  name=$(printf %s "${argument%%[!A-Za-z0-9._-]*}" | tr A-Z_. a-z--)
  while IFS='	' read -r package instead; do
    [ "$package" != "$name" ] || echo "truetag: $package: $instead" >&2
  done <"$here/hints"
done
exit $code
