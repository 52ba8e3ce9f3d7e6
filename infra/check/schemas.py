# ruff: noqa: E501 - values and messages on one line
"""Schemas of the providers' objects, read from the JavaScript of their typed bindings (`schemas.txt`).

Providers are programs that no package index has; the bindings are generated from the same schemas. The wheels are read
as text, and never imported.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CLASS = re.compile(r"^class (\w+) extends cdktn\.(\w+) \{(.*?)^exports\.", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r'(\w+): \{\s+value: [^\n]+\n\s+isBlock: (\w+),\s+type: "(\w+)",\s+storageClassType: "(\w+)"')
_ATTRIBUTE = re.compile(
    r"// (\w+) - computed: (\w+), optional: (\w+), required: (\w+)\n(.*?)(?=\n    // \w+ - computed|\n    // =====|\n\}|\Z)",
    re.DOTALL,
)
_PREFIX = re.compile(r"\b(?:index_structs_\d+|structs\d+_js_\d+|structs\d+_\d+)\.")
_VERSION = re.compile(r"providers/[\w-]+/[\w-]+/([\d.]+)/|providerVersion: '([\d.]+)'")
_PLAIN = {"string": "string", "boolean": "bool", "number": "number", "any": "dynamic"}
_GETTERS = {
    "String": "string", "Number": "number", "Boolean": "bool", "List": ["list", "string"],
    "NumberList": ["list", "number"], "StringMap": ["map", "string"], "AnyMap": ["map", "string"],
}  # fmt: skip
_OBJECTS = ("TerraformResource", "TerraformDataSource", "TerraformProvider")

Body = dict[str, dict[str, Any]]
"""`attributes` by name, and `blocks` by name."""


def used_types(root: Path) -> set[tuple[str, str]]:
    """Return kind and type of everything that the modules make or read."""
    text = "\n".join(path.read_text("utf-8") for path in sorted(root.glob("infra/*/*.tf")))
    return set(re.findall(r'^\s*(resource|data) "(\w+)"', text, re.MULTILINE))


def read_schemas(wheels: Path, used: set[tuple[str, str]]) -> dict[str, Any]:
    """Return each provider's version, own schema, and schemas of these types."""
    found: dict[str, Any] = {}
    for provider in sorted({type_.partition("_")[0] for _, type_ in used}):
        (wheel,) = wheels.glob(f"cdktn_provider_{provider}-*.whl")
        bindings = _Bindings(wheel, provider, [item for item in sorted(used) if item[1].partition("_")[0] == provider])
        found[provider] = {"resource": {}, "data": {}, "provider": bindings.body("provider", provider)}
        for kind, type_ in bindings.types:
            if bindings.has(kind, type_):
                found[provider][kind][type_] = bindings.body(kind, type_)
        found[provider]["version"] = bindings.version
    return found


class _Bindings:
    """JavaScript of one provider's bindings: the folders of the types in use."""

    def __init__(self, wheel: Path, provider: str, types: list[tuple[str, str]]) -> None:
        self.types, self.version = types, ""
        folders = {name for kind, type_ in [*types, ("provider", provider)] for name in _folders(kind, type_)}
        self._texts: dict[str, list[str]] = {}
        with zipfile.ZipFile(wheel) as outer:
            name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name)), mode="r:gz") as archive:
                for member in archive:
                    folder, _, file = member.name.removeprefix("package/lib/").partition("/")
                    if folder in folders and re.fullmatch(r"index\.js|index-structs/structs\d*\.js", file):
                        stream = archive.extractfile(member)
                        assert stream is not None
                        text = _PREFIX.sub("", stream.read().decode("utf-8"))
                        self._texts.setdefault(folder, []).insert(0 if "/" in file else 1 << 30, text)

    def has(self, kind: str, type_: str) -> bool:
        """Return whether the provider has this type."""
        return any(folder in self._texts for folder in _folders(kind, type_))

    def body(self, kind: str, type_: str) -> Body:
        """Return the schema of a resource, of a data source or of the provider."""
        text = "\n".join(next(self._texts[folder] for folder in _folders(kind, type_) if folder in self._texts))
        version = _VERSION.search(text)
        self.version = self.version or (version[1] or version[2] if version else "")
        return _Parser(text, is_open=type_ == "helm").whole()


def _folders(kind: str, type_: str) -> tuple[str, ...]:
    """Return the folders in which the bindings may have a type."""
    name = type_.replace("_", "-")
    if kind != "resource":
        return ("provider",) if kind == "provider" else (f"data-{name}",)
    name = name.partition("-")[2]
    return name, f"{name}-resource"


class _Parser:
    """Text of one object's bindings: its classes, and the functions that write their values as HCL."""

    def __init__(self, text: str, *, is_open: bool) -> None:
        self._classes = {found[1]: (found[2], found[3]) for found in _CLASS.finditer(text)}
        self._functions = {found[1]: found[2] for found in _FUNCTION.finditer(text)}
        self._is_open = is_open

    def whole(self) -> Body:
        """Return the object's own body."""
        text = next(text for base, text in self._classes.values() if base in _OBJECTS)
        own = text.partition("// ATTRIBUTES")[2].partition("// SYNTHESIS")[0]
        return self._body(own, text.partition("synthesizeHclAttributes()")[2])

    def _body(self, text: str, written: str) -> Body:
        values = {found[1]: (found[2] == "true", found[3], found[4]) for found in _VALUE.finditer(written)}
        body: Body = {"attributes": {}, "blocks": {}}
        for found in _ATTRIBUTE.finditer(text):
            name, code = found[1], found[5]
            flags = {key: found[place] == "true" for place, key in ((2, "computed"), (3, "optional"), (4, "required"))}
            is_block, nesting, kind = values.get(name, (False, "", ""))
            nested = self._nested(_single(kind)) if is_block else None
            if nested is not None:
                is_one = re.search(r"= new \w+OutputReference\(", code) is not None and nesting in ("list", "set")
                nesting = nesting if nesting in ("list", "set") else "single"
                body["blocks"][name] = {"nesting": nesting, "is_one": is_one, **flags, "body": nested}
                continue
            type_ = "dynamic" if is_block else _type(nesting, kind) if name in values else self._got(code)
            flags["optional"] |= not any(flags.values())
            body["attributes"][name] = {**flags, "type": type_}
        return body

    def _nested(self, kind: str) -> Body | None:
        """Return the body of a nested class; None for an attribute that has fields."""
        written = self._functions.get(kind[:1].lower() + kind[1:], "")
        if f"{kind}OutputReference" in self._classes:
            return self._body(self._classes[f"{kind}OutputReference"][1], written)
        if not written or self._is_open:
            return None
        body: Body = {"attributes": {}, "blocks": {}}
        for name, is_block, written_nesting, inner in _VALUE.findall(written):
            flags = {"computed": False, "optional": True, "required": False}
            if is_block != "true":
                body["attributes"][name] = {**flags, "type": _type(written_nesting, inner)}
            elif (nested := self._nested(_single(inner))) is not None:
                nesting = written_nesting if written_nesting in ("list", "set") else "list"
                body["blocks"][name] = {"nesting": nesting, "is_one": False, **flags, "body": nested}
        return body

    def _got(self, code: str) -> Any:
        """Return the type of an attribute that is only read."""
        if "new cdktn.StringMap(" in code:
            return ["map", "string"]
        if found := re.search(r'= new (\w+?)(List|OutputReference|Map)\(this, "\w+"(?:, (true|false))?', code):
            fields = ["object", dict(self._fields(self._nested(found[1])))]
            names = {"List": "set" if found[3] == "true" else "list", "Map": "map"}
            return [names[found[2]], fields] if found[2] in names else fields
        getter = re.search(r"get(\w+?)Attribute\('", code)
        type_ = _GETTERS.get(getter[1], "dynamic") if getter else "dynamic"
        return ["set", type_[1]] if "Fn.tolist" in code else type_

    def _fields(self, body: Body | None) -> Iterator[tuple[str, Any]]:
        for name, attribute in (body["attributes"] if body else {}).items():
            yield name, attribute["type"]
        for name, block in (body["blocks"] if body else {}).items():
            yield name, [block["nesting"], ["object", dict(self._fields(block["body"]))]]


def _single(kind: str) -> str:
    return kind.removesuffix("List")


def _type(nesting: str, kind: str) -> Any:
    """Return Terraform's type of a written value."""
    if nesting == "simple":
        return _PLAIN.get(kind, "dynamic")
    if nesting == "map":
        return ["map", _PLAIN.get(kind.removesuffix("Map"), "string")]
    element = ["map", "string"] if kind.endswith("MapList") else _PLAIN.get(_single(kind), "dynamic")
    return [nesting if nesting in ("list", "set") else "list", element]
