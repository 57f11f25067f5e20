# read_base.sh X.Y UID: prints what a base image has, in lines NAME=VALUE. Runs inside the base, as root and without network.
# X.Y is the Python that the image needs, UID its user. images/planning/custom_base.py names what is missing and judges it.
( . /etc/os-release && echo "os=$PRETTY_NAME" ) 2>/dev/null
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2)"
echo "apt=$(command -v apt-get)"

for program in bash comm cut getent grep ldconfig sed sort stat gcc g++; do
  command -v "$program" >/dev/null || echo "missing=$program"
done
# Build steps list files with an option that only GNU's find has.
find / -maxdepth 0 -printf '' 2>/dev/null || echo "missing=GNU find"
getent passwd "$2" >/dev/null || command -v useradd >/dev/null || echo "missing=useradd"
[ -d /etc/profile.d ] || echo "missing=/etc/profile.d"

python=$(command -v "python$1" || command -v python3) || exit 0
"$python" -I -B -c '
import importlib.util, os, sys, sysconfig
print("python=" + sys.executable)
print("python_version=%d.%d.%d" % sys.version_info[:3])
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("missing=Python.h")
if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
    print("missing=venv")
# python3-minimal lacks these, and a Python that was compiled without the headers of a library lacks the module of it.
for name in ("bz2", "ctypes", "lzma", "ssl"):
    try:
        importlib.import_module(name)
    except ImportError:
        print("missing=module " + name)
'
