"""JSON Schema of a suite file, for editors that complete and check TOML."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from plumbline.schema.suite import Suite

__all__ = ["suite_schema"]


def suite_schema() -> dict[str, Any]:
    """Return the schema of a suite file; a key's description is its field's docstring."""
    schema = Suite.model_json_schema()
    kinds = {kind.__name__: kind for kind in _models(Suite)}
    for name, definition in (("Suite", schema), *schema["$defs"].items()):
        for field, text in _docstrings(kinds[name]).items():
            if field in definition.get("properties", {}):
                definition["properties"][field]["description"] = text
    # A file may name the lock by its path; the model has its digest.
    del schema["$defs"]["Platform"]["properties"]["lock"]["pattern"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _models(kind: type[BaseModel]) -> set[type[BaseModel]]:
    """Return `kind` and the models of its fields, at any depth."""
    found, pending = set[type[BaseModel]](), [kind]
    while pending:
        model = pending.pop()
        found.add(model)
        parts: list[Any] = [field.annotation for field in model.model_fields.values()]
        while parts:
            part = parts.pop()
            parts += getattr(part, "__args__", ())
            if isinstance(part, type) and issubclass(part, BaseModel) and part not in found:
                pending.append(part)
    return found


def _docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of the class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip
