"""Small checkpoints of each family, written by `save_pretrained`."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

REVIEWS = [
    (f"the {noun} is {word} and I {verb} it", label)
    for noun in ("kettle", "lamp", "tent", "drill", "watch", "router")
    for word, label in (("great", "positive"), ("solid", "positive"), ("poor", "negative"), ("flimsy", "negative"))
    for verb in ("keep", "return", "use")
]
_SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
_BERT = {**_SIZE, "max_position_embeddings": 40}
_DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 40}
_MODERN = {**_SIZE, "max_position_embeddings": 64, "local_attention": 8, "global_attn_every_n_layers": 2}
FAMILIES = {
    "bert": ("Bert", _BERT, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "distilbert": ("DistilBert", _DISTIL, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "roberta": ("Roberta", {**_BERT, "type_vocab_size": 1}, ("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    "modernbert": ("ModernBert", _MODERN, ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")),
    "electra": ("Electra", {**_BERT, "embedding_size": 32}, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
}
"""The prefix of transformers' classes, a small configuration, and the special tokens in their order."""
ACTIVATIONS = {
    "bert": "bert.encoder.layer.1.intermediate.intermediate_act_fn",
    "distilbert": "distilbert.transformer.layer.1.ffn.activation",
    "roberta": "roberta.encoder.layer.1.intermediate.intermediate_act_fn",
    "modernbert": "model.layers.1.mlp.act",
    "electra": "electra.encoder.layer.1.intermediate.intermediate_act_fn",
}


def write_reviews(path: Path) -> Path:
    path.write_text("review;sentiment\n" + "".join(f"{text};{label}\n" for text, label in REVIEWS))
    return path


def _tokenizer(special: tuple[str, ...]) -> Tokenizer:
    """Return a byte-level BPE for RoBERTa and ModernBERT, else a word-level tokenizer."""
    first, last = ("<s>", "</s>") if "<s>" in special else ("[CLS]", "[SEP]")
    unknown = "<unk>" if "<unk>" in special else "[UNK]"
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((text for text, _ in REVIEWS), trainer)
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(first, ids[first]), (last, ids[last])],
    )
    return tokenizer


def make_checkpoint(family: str, folder: Path, task: str = "MaskedLM", **changes) -> Path:
    """Save a model with random weights and its tokenizer into `folder`."""
    name, size, special = FAMILIES[family]
    tokenizer = _tokenizer(special)
    pad = tokenizer.token_to_id("<pad>" if "<pad>" in special else "[PAD]")
    settings = {**size, **changes, "vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad}
    config = getattr(transformers, f"{name}Config")(**settings)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = getattr(transformers, f"{name}For{task}")(config)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder
