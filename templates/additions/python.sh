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
# pip sees to the needs of what it is asked for, and of nothing else. transformers refuses to be imported beside another series of
# huggingface-hub or tokenizers: so it is asked for, too, and stays, or moves with them. Not where that would do more than this.
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
# pip itself says what is in conflict, and not what to take instead.
"$python" "$@" $kept && exit
code=$?
echo "truetag: torch, CUDA's libraries and kernels stay as validated (/opt/truetag/constraints.txt)." >&2
for argument in "$@"; do
  name=$(printf %s "${argument%%[!A-Za-z0-9._-]*}" | tr A-Z_. a-z--)
  while IFS='	' read -r package instead; do
    [ "$package" != "$name" ] || echo "truetag: $package: $instead" >&2
  done <"$here/hints"
done
exit $code
