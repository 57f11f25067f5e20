FROM {base} AS whole
RUN --mount=type=bind,source=host,target=/run/host --mount=type=bind,source=scripts,target=/run/scripts \
    sh /run/scripts/debian.sh 3.11 python3
RUN set -e; cd /; mkdir -p /small/usr; mkdir -m 1777 /small/tmp; \
    tar -c bin lib lib64 usr/bin/python3* usr/bin/sh usr/bin/dash usr/bin/cat usr/lib/python3.11 usr/lib/os-release \
        usr/share/ca-certificates var/lib/dpkg etc | tar -x -C /small; \
    ldd usr/bin/python3.11 usr/bin/cat usr/lib/python3.11/lib-dynload/*.so | grep -o '/lib[^ ]* (' | sort -u | \
    while read file _; do mkdir -p /small/usr${file%/*}; cp -L $file /small/usr$file; done
FROM scratch
COPY --from=whole /small /
ENV PATH=/usr/bin:/bin
