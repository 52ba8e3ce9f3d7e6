"""Import of BERT without the table of transformers' other models."""

from __future__ import annotations

import subprocess
import sys

import pytest

OURS = """
import sys
from plumbline.train.models.model import BertConfig, modeling_bert
assert "transformers.models" not in sys.modules
"""


def ran(code: str) -> str:
    return subprocess.run([sys.executable, "-c", OURS + code], check=True, capture_output=True, text=True).stdout


@pytest.mark.long
def test_the_others_are_there_for_who_asks_later() -> None:
    output = ran("""
import transformers
from transformers.models import BertModel
from transformers import AutoConfig, BertForMaskedLM
print(BertModel is modeling_bert.BertModel, BertForMaskedLM is modeling_bert.BertForMaskedLM)
print(transformers.BertConfig is BertConfig, AutoConfig.for_model("bert").__class__ is BertConfig)
print(modeling_bert is transformers.models.bert.modeling_bert, transformers.models.__name__)
""")
    assert output.split() == ["True"] * 5 + ["transformers.models"]


@pytest.mark.long
def test_who_has_loaded_all_of_it_before_keeps_it() -> None:
    code = """
import sys
from transformers.models import BertModel
before = sys.modules["transformers.models"]
from plumbline.train.models.model import modeling_bert
print(sys.modules["transformers.models"] is before, modeling_bert.BertModel is BertModel)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == ["True", "True"]
