# record_change_times.sh [ROOT FILE]: a build step's first command. Notes in FILE what ROOT holds, each with the time of its last change:
# what bears another time when the step ends was written by the step (normalise_timestamps.py).
set -eu
root=${1:-/} before=${2:-/run/before}
find "$root" -xdev -printf '%C@ %p\0' >"$before"
# File systems count time in ticks. Within the tick of its last change a file could be changed once more and bear the same
# time, so the step begins with a new one. Of this file system: another may have a finer clock.
marker=$(mktemp "$root/.begin.XXXXXX")
tick=$(stat -c %z "$marker")
while :; do
  touch "$marker"
  [ "$(stat -c %z "$marker")" = "$tick" ] || break
done
rm "$marker"
