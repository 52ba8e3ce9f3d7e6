"""JSON Schemas of suite files and documents, described by field docstrings."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from plumbline.schema.alert_event import EVENTS
from plumbline.schema.suite import Suite
from plumbline.schema.task import TASKS


def suite_schema() -> dict[str, Any]:
    """Return the JSON Schema of a suite file, for editors."""
    schema = described_schema(Suite)
    # A file may name the lock by its path; the model has its digest.
    kinds = schema["$defs"]
    del kinds["Platform"]["properties"]["lock"]["pattern"]
    # A file lists a command's files; the model has their places, too.
    files = kinds["CommandWorkload"]["properties"]["files"]
    kinds["CommandWorkload"]["properties"]["files"] = {
        "default": [], "description": files["description"], "items": {"type": "string"}, "type": "array",
    }  # fmt: skip
    for kind in ("Workload", "CommandWorkload"):
        kinds[kind]["properties"]["task"]["enum"] = list(TASKS)
    kinds["Alert"]["properties"]["on"]["items"]["enum"] = list(EVENTS)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def described_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of `kind`, described by field docstrings."""
    schema = kind.model_json_schema()
    kinds = {model.__name__: model for model in _models(kind)}
    for name, definition in ((kind.__name__, schema), *schema.get("$defs", {}).items()):
        texts: dict[str, str] = {}
        for model in kinds[name].__mro__ if name in kinds else ():
            if issubclass(model, BaseModel) and model is not BaseModel:
                texts = _docstrings(model) | texts
        for field in texts.keys() & definition.get("properties", {}).keys():
            definition["properties"][field].setdefault("description", texts[field])
    return schema


def _models(kind: type[BaseModel]) -> set[type[BaseModel]]:
    """Return `kind` and all models nested in its fields."""
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


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the syntax trees of a module's classes by name."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def _docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field of a class."""
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(_classes(kind.__module__)[kind.__name__].body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip
