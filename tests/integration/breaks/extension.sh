# extension.sh NAME FLAGS...: compile /run/breaks/NAME.c into site-packages/NAME.so, as a package with a RECORD.
set -eu
name=$1
shift
site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
gcc -shared -fPIC "$@" -o "$site/$name.so" "/run/breaks/$name.c" -lm
info="$site/$name-1.0.dist-info"
mkdir "$info"
printf 'Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n' "$name" >"$info/METADATA"
printf 'Wheel-Version: 1.0\nTag: py3-none-any\n' >"$info/WHEEL"
hash=$(python3 -c 'import base64, hashlib, sys
print(base64.urlsafe_b64encode(hashlib.sha256(open(sys.argv[1], "rb").read()).digest()).rstrip(b"=").decode())' "$site/$name.so")
printf '%s.so,sha256=%s,\n%s-1.0.dist-info/RECORD,,\n' "$name" "$hash" "$name" >"$info/RECORD"
