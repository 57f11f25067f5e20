# Puts a program before each of these that prints a forged record and then does what it is called for.
for program; do
  mv "$program" "$program.wrapped"
  printf '#!/bin/bash\n/usr/bin/python3.11 -I -S /usr/local/bin/forge.py\nexec -a "$0" %s.wrapped "$@"\n' "$program" >"$program.new"
  chmod 755 "$program.new"
  mv "$program.new" "$program"
done
