FROM {base} AS whole
RUN --mount=type=bind,source=host,target=/run/host --mount=type=bind,source=scripts,target=/run/scripts \
    sh /run/scripts/debian.sh 3.11 python3
RUN rm -r /usr/share/doc /usr/share/locale /usr/share/man /usr/share/zoneinfo /usr/lib/*/gconv /usr/lib/*/perl* \
    /usr/share/perl* /usr/bin/perl* /usr/sbin /var/cache/*
FROM scratch
COPY --from=whole / /
ENV PATH=/usr/bin:/bin
