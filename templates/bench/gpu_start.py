"""The first seconds of QLoRA on one GPU: imports, CUDA context, first product, model in 4-bit, steps, a Triton kernel.

Prints one line of JSON: the machine's monotonic clock at the end of each stage, the losses, and bytes of memory.
"""

import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

at = {"python": time.monotonic()}
torch = import_module("torch")
at["torch"] = time.monotonic()
transformers, peft, bitsandbytes = map(import_module, ("transformers", "peft", "bitsandbytes"))
Llama, Config = transformers.LlamaForCausalLM, transformers.LlamaConfig  # transformers imports them when asked for
RMSNorm = import_module("liger_kernel.transformers").LigerRMSNorm
at["imports"] = time.monotonic()


def beside_allocator() -> int:
    """Bytes of the GPU that are taken and not torch's: the context, loaded modules, workspaces of libraries."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


torch.empty(1, device="cuda")
at["context"], gpu_context = time.monotonic(), beside_allocator()
product = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
(product @ product).sum().item()
at["matmul"] = time.monotonic()
torch.manual_seed(0)
shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
with tempfile.TemporaryDirectory() as folder:
    Llama(Config(vocab_size=1024, num_hidden_layers=2, **shape)).save_pretrained(folder)
    at["small model saved"] = time.monotonic()
    four = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = Llama.from_pretrained(folder, quantization_config=four, device_map={"": 0}, dtype=torch.bfloat16)
torch.cuda.synchronize()
at["loaded in 4-bit"] = time.monotonic()
lora = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
model = peft.get_peft_model(peft.prepare_model_for_kbit_training(model), lora)
moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = bitsandbytes.optim.AdamW8bit(moving, lr=1e-3, min_8bit_size=1)
tokens, losses = torch.randint(1024, (2, 64)).cuda(), []
for step in ("first step", "second step"):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    torch.cuda.synchronize()
    at[step] = time.monotonic()
RMSNorm(256).cuda()(torch.ones(2, 256, device="cuda")).sum().item()
at["Triton kernel"] = time.monotonic()
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) * 1024
memory = {"host_peak": peak, "gpu_context": gpu_context, "gpu_beside": beside_allocator()}
json.dump({"at": at, "losses": losses, "memory": memory}, sys.stdout)
