"""WordPiece tokenizer, trained reproducibly on a dataset's rows.

`tokenizers` numbers single characters in the order of a hash map, which differs on every run, and breaks ties between
merges by these numbers. Here all characters are listed in advance, in order, which makes the result deterministic. (The
file's layout may still change with the release of `tokenizers`, which the lock file pins.)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from plumbline.schema.base import Model, read_model
from plumbline.schema.errors import InvalidInputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_FILES = ("tokenizer.json", "vocab.txt")
_MAX_CHARACTERS = 1000
_MAX_BYTES = 64 << 20
_PREFIX = "##"
_MOST_WORDS = 50_000


def train_tokenizer(texts: Iterable[str], vocab_size: int, *, lowercase: bool) -> tuple[bytes, int]:
    """Train a tokenizer on `texts`; return file bytes and vocabulary size.

    The texts are read twice; only the distinct words are kept in memory.
    """
    from tokenizers import trainers

    draft = _bert_tokenizer({}, lowercase=lowercase)
    characters, pieces = _alphabet(draft, texts)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *characters, *pieces],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    vocabulary = draft.get_vocab()
    final = _bert_tokenizer(vocabulary, lowercase=lowercase)
    return (final.to_str(pretty=True) + "\n").encode(), len(vocabulary)


def word_tokenizer(vocabulary: dict[str, int]) -> bytes:
    """Build a whole-word tokenizer of lowercase words, as file bytes. `vocabulary` begins with the special tokens."""
    return str(_bert_tokenizer(vocabulary, lowercase=True).to_str()).encode()


def _bert_tokenizer(vocabulary: dict[str, int], *, lowercase: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token, not a password
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_PREFIX)
    if vocabulary:
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
    return tokenizer


def _alphabet(tokenizer: Any, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the most frequent characters and their continuation pieces, sorted."""
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for words in _words(tokenizer, texts):
        for word, count in words.items():
            for character in word:
                counts[character] += count
            inner.update(word[1:])
    kept = sorted(counts, key=lambda character: (-counts[character], character))[:_MAX_CHARACTERS]
    return sorted(kept), [_PREFIX + character for character in sorted(inner.intersection(kept))]


def _words(tokenizer: Any, texts: Iterable[str]) -> Iterator[Counter[str]]:
    """Yield word counts in batches of limited size."""
    split: Callable[[str], list[tuple[str, Any]]] = tokenizer.pre_tokenizer.pre_tokenize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split(tokenizer.normalizer.normalize_str(text)))
        if len(counts) >= _MOST_WORDS:
            yield counts
            counts = Counter()
    yield counts


def read_tokenizer(path: Path, *, lowercase: bool = True) -> tuple[bytes, int, int]:
    """Return a user's tokenizer file, its vocabulary size and padding token.

    A `tokenizer.json` is unchanged; a `vocab.txt` of BERT alone is converted. `tokenizer_config.json` beside it says
    whether it lower-cases, else `lowercase`.
    """
    from tokenizers import Tokenizer

    file = tokenizer_file(path)
    if not file.is_file():
        hint = "name a tokenizer.json, the vocab.txt of BERT, or a folder with one of them"
        raise InvalidInputError("no such file", where=str(file), key="tokenizer", hint=hint)
    if file.stat().st_size > _MAX_BYTES:
        raise InvalidInputError(f"more than {_MAX_BYTES >> 20} MiB", where=str(file), key="tokenizer")
    data = _converted(file, lowercase=lowercase) if file.suffix == ".txt" else file.read_bytes()
    try:
        content = json.loads(data)
        vocabulary = Tokenizer.from_str(data.decode()).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises bare Exception for whatever it cannot read
        raise InvalidInputError(
            "is not a tokenizer of the tokenizers library", where=str(file), key="tokenizer"
        ) from error
    if not isinstance(content, dict) or not vocabulary:
        raise InvalidInputError("contains no vocabulary", where=str(file), key="tokenizer")
    named = next((tokens for tokens in (SPECIAL_TOKENS, _ROBERTA_TOKENS) if set(tokens) <= set(vocabulary)), None)
    if named is None:
        raise _not_bert(vocabulary, file)
    return data, max(vocabulary.values()) + 1, vocabulary[named[0]]


def tokenizer_file(path: Path) -> Path:
    """Return the tokenizer file at `path`, or within the folder `path`."""
    if not path.is_dir():
        return path
    return next((path / name for name in _FILES if (path / name).is_file()), path / _FILES[0])


def _not_bert(vocabulary: Collection[str], file: Path) -> InvalidInputError:
    missing = next(token for token in SPECIAL_TOKENS if token not in vocabulary)
    text = f"lacks {missing}: not a tokenizer of the BERT family"
    return InvalidInputError(text, where=str(file), key="tokenizer")


class _Config(Model):
    """Keys of a `tokenizer_config.json` that affect BERT's tokens."""

    model_config = ConfigDict(extra="ignore")

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    """`None`: only where it lower-cases."""
    tokenize_chinese_chars: bool = True


def _converted(file: Path, *, lowercase: bool) -> bytes:
    """Convert a one-token-per-line vocabulary file to a WordPiece tokenizer."""
    from tokenizers import BertWordPieceTokenizer

    try:
        tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except ValueError as error:
        raise InvalidInputError(f"cannot be read: {error}", where=str(file), key="tokenizer") from error
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if not set(SPECIAL_TOKENS) <= set(vocabulary):
        raise _not_bert(vocabulary, file)
    path = file.with_name("tokenizer_config.json")
    config = read_model(_Config, path) if path.is_file() else _Config()
    tokenizer = BertWordPieceTokenizer(
        vocabulary,
        lowercase=lowercase if config.do_lower_case is None else config.do_lower_case,
        strip_accents=config.strip_accents,
        handle_chinese_chars=config.tokenize_chinese_chars,
    )
    return (str(tokenizer.to_str(pretty=True)) + "\n").encode()
