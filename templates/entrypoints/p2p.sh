#!/bin/sh
# entrypoint COMMAND...: sets NCCL_P2P_DISABLE=1 where two of the GPUs can't read each other's memory, then runs COMMAND.
# A value that was given is kept. Rows of the driver's matrix begin with GPU0, GPU1, ...; every state but OK and X (the GPU
# itself) is a pair without P2P.
set -eu
if [ -z "${NCCL_P2P_DISABLE:-}" ] && command -v nvidia-smi >/dev/null; then
    matrix=$(nvidia-smi topo -p2p r 2>/dev/null || true)
    if printf '%s\n' "$matrix" | grep -Eq '^[[:space:]]*GPU[0-9]+.*[[:space:]](NS|CNS|GNS|TNS|DR|U)([[:space:]]|$)'; then
        export NCCL_P2P_DISABLE=1
        echo "entrypoint: NCCL_P2P_DISABLE=1, some GPUs here can't reach each other's memory" >&2
    fi
fi
exec "$@"
