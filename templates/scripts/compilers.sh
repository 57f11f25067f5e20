# compilers.sh: gcc and g++ on a foreign base that lacks them (Triton and torch.compile call them at run time).
set -eu
. /run/host/env
if ! { command -v gcc && command -v g++; } >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -qq --no-install-recommends gcc g++ libc6-dev
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/cache/ldconfig/aux-cache /var/log/*.log /var/log/apt
fi
