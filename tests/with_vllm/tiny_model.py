"""``python tiny_model.py FOLDER``: writes a Llama of two layers and a tokenizer trained on the spot. Needs no network.

The same weights and vocabulary on every run.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXTS = [
    "Scheduling is deciding, step by step, which requests may go on.",
    "Numbers such as 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1024 are tokens too!",
    'if blocks < 2: raise MemoryError("preempt {one} [request]")',
]


def tokenizer():
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(TEXTS * 20, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=trained,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=1024,
    )
    wrapped.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    return wrapped


def model(vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        tie_word_embeddings=False,
        initializer_range=0.5,  # large, so that the most likely token is likely by far
    )
    return LlamaForCausalLM(config).to(torch.float32)


if __name__ == "__main__":
    folder = sys.argv[1]
    words = tokenizer()
    words.save_pretrained(folder)
    model(len(words)).save_pretrained(folder, safe_serialization=True)
