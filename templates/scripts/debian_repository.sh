# debian_repository.sh LOCK FOLDER: makes FOLDER a repository of the Debian packages that LOCK names, and of no others. What the
# mirror (DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR) does not give comes from Debian's snapshot archive (DEBIAN_SNAPSHOT), as of the
# lock's day, or two days later: it has the last import before a time, and what is newer came with a later one.
set -eu
umask 022
export LC_ALL=C  # apt's messages are read
lock=$1 folder=$2
read -r _ suite _ day <"$lock"
snapshot=${DEBIAN_SNAPSHOT:-https://snapshot.debian.org}
mkdir -p "$folder"
# fetch DEBIAN SECURITY: what FOLDER lacks, from these archives; what apt says of it goes to FOLDER/said.
fetch() {
  debian=${1%/} security=${2%/}
  set --
  while read -r hash path; do
    file=$folder/${path##*/}
    case $path in
      debian/*) uri=$debian/${path#debian/} ;;
      debian-security/*) uri=$security/${path#debian-security/} ;;
      *) continue ;;
    esac
    # apt leaves what it got of a download that broke off.
    if ! echo "$hash  $file" | sha256sum --check --status 2>/dev/null; then
      rm -f "$file"
      set -- "$@" "$uri" "$file" "SHA256:$hash"
    fi
  done <"$lock"
  [ $# -eq 0 ] || /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file "$@" >"$folder/said" 2>&1
}
# refused WHY: ends with what apt said of the first package that can't be had.
refused() {
  echo "of the lock's Debian packages, $1: $(sed -n 's/^E: Failed to fetch //p' "$folder/said" | head -1)" >&2
  grep -v '^E: Failed to fetch' "$folder/said" >&2 || true
  exit 1
}
if ! fetch "$DEBIAN_MIRROR" "$DEBIAN_SECURITY_MIRROR"; then
  # Other bytes under a name of the lock are no matter of age.
  ! grep -q 'Hash Sum mismatch' "$folder/said" || refused "the mirror has other bytes"
  echo "the mirror does not give $(grep -c '^E: Failed to fetch' "$folder/said") of the lock's packages: fetching from $snapshot" >&2
  later=$(date -u -d "${day%T*} 2 days" +%Y%m%dT%H%M%SZ)
  fetch "$snapshot/archive/debian/$day" "$snapshot/archive/debian-security/$day" \
    || fetch "$snapshot/archive/debian/$later" "$snapshot/archive/debian-security/$later" \
    || refused "neither the mirror nor $snapshot gives"
fi
while read -r hash path; do
  file=$folder/${path##*/}
  case $path in *.deb) ;; *) continue ;; esac
  dpkg-deb -f "$file"
  printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "${path##*/}" "$(stat -c %s "$file")" "$hash"
done <"$lock" >"$folder/Packages"
printf 'Codename: %s\nSHA256:\n %s %s Packages\n' "$suite" "$(sha256sum <"$folder/Packages" | cut -d ' ' -f 1)" \
  "$(stat -c %s "$folder/Packages")" >"$folder/Release"
