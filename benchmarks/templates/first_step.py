"""What a training job does first, without a GPU: import, make a small model, train one step with LoRA.

Prints one line of JSON: seconds of the machine's monotonic clock, and the loss.
"""

import json
import sys
import time
from importlib import import_module

torch, transformers, peft, _ = map(import_module, ("torch", "transformers", "peft", "bitsandbytes"))
imported = time.monotonic()
torch.manual_seed(0)
shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
config = transformers.LlamaConfig(vocab_size=1024, num_hidden_layers=2, **shape)
lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
optimizer = torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)
tokens = torch.randint(1024, (2, 64))
loss = model(input_ids=tokens, labels=tokens).loss
loss.backward()
optimizer.step()
json.dump({"imported": imported, "stepped": time.monotonic(), "loss": loss.item()}, sys.stdout)
