"""Makes a tiny Llama with a tokenizer, offline and the same each time: python3 tiny.py [FOLDER]

It has 1.5 million weights in float32 and a tokenizer of bytes, as transformers saves them, and has
learned nothing yet.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
CHAT = "{% for message in messages %}"
CHAT += "{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}\n{% endfor %}"
CHAT += "{% if add_generation_prompt %}assistant: {% endif %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte: any text goes in, and the same text comes out."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {word: number for number, word in enumerate([*SPECIAL, *letters])}
    plain = Tokenizer(models.BPE(vocab=numbers, merges=[], unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    made.chat_template = CHAT
    return made


def model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=320,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        initializer_range=0.06,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(shape)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "tiny-llama"
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
