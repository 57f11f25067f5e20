FROM {base} AS whole
RUN set -e; mkdir -p /small/bin /small/dev /small/etc /small/opt /small/proc /small/sys /small/tmp; \
    touch /small/etc/hosts /small/etc/resolv.conf; \
    for name in sh cat chmod head ln ls mkdir rm seq sleep touch true; do cp -L /usr/bin/$name /small/bin/; done; \
    ldd /small/bin/* | grep -o '/lib[^ ]*' | sort -u | while read file; do \
        mkdir -p /small${file%/*}; cp -L $file /small$file; done
FROM scratch
COPY --from=whole /small /
ENV PATH=/bin
