"""An encoder and decoder (T5), trained by Hugging Face's Trainer: `python trainer.py RECORD`. One line is Plumbline's."""

import sys
import tempfile

import torch
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments, set_seed

from plumbline import hugging_face_callback

set_seed(7)
config = T5Config(
    vocab_size=80, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, dropout_rate=0.1
)
rows = [
    {"input_ids": torch.randint(2, 80, (12,)), "attention_mask": torch.ones(12).long(), "labels": torch.randint(2, 80, (6,))}
    for _ in range(80)
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, max_steps=10, learning_rate=1e-3, seed=7, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    Trainer(
        T5ForConditionalGeneration(config), arguments, train_dataset=rows,
        callbacks=[hugging_face_callback(sys.argv[1], steps=10)],
    ).train()  # fmt: skip
