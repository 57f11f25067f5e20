#!/bin/sh
# Trains on the first GPU by what vLLM samples on the second: sh server.sh grpo-server.yaml
set -eu
gpus=${CUDA_VISIBLE_DEVICES:-0,1}
other=${gpus#*,}
model=$(sed -n 's/^model: //p' "$1")
export VLLM_HOST_IP=127.0.0.1  # both are on this machine
CUDA_VISIBLE_DEVICES=${other%%,*} VLLM_SERVER_DEV_MODE=1 vllm serve "$model" --host 127.0.0.1 --enable-scale-out \
  --weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1 \
  >vllm.log 2>&1 &
server=$!
trap 'kill $server; wait $server || true' EXIT
CUDA_VISIBLE_DEVICES=${gpus%%,*} python3 online.py "$1" || { tail -n 30 vllm.log; exit 1; }
