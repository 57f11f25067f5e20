# Debian sid's Apptainer, with this machine's Python and a checkout, as a user without rights:
# `unshare --mount --propagation private sh apptainer_root.sh ROOT USER COMMAND...`. Paths are those of this machine.
set -eu
root=$1 user=$2
shift 2
mount --bind "$root" "$root"
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
mount -t tmpfs tmpfs "$root/run"
for path in $TRUETAG_SHOWN; do
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root$(dirname "$path")" && touch "$root$path"; fi
  mount --rbind "$path" "$root$path"
done
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
cd /
exec setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set=-all "$@"
