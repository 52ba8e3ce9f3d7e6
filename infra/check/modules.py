"""Check of the modules below `infra/`: their arguments, blocks and references, by the schemas of the providers.

Providers are programs that no package index has. Their typed bindings are on PyPI (`schemas.txt`), generated from the
same schemas: the arguments of each constructor are a resource's arguments. The wheels are read as text, and never
imported.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_CLASS = re.compile(r"^(class (\w+)[:(].*?)(?=^(?:@|class |def |__all__|publication|if )|\Z)", re.MULTILINE | re.DOTALL)
_BASE = re.compile(r"class \w+\(\s+\w+\.Terraform(Resource|DataSource|Provider),")
_META = {"count", "for_each", "depends_on", "provider", "lifecycle", "connection", "provisioner"}
_REFERENCE = re.compile(r"(?<![\w.\"/-])((?:data\.)?[a-z]\w*)\.(\w+)((?:\[[^\]]*\])?)(?:\.(\w+))?")


@dataclass(frozen=True)
class Argument:
    """One argument or block of a resource."""

    is_required: bool
    is_block: bool | None
    """None where the bindings do not say."""
    is_repeated: bool
    kind: str
    """Class of a nested object; empty for a plain value."""


@dataclass(frozen=True)
class Schema:
    """Everything that one provider's object takes and gives."""

    arguments: dict[str, Argument]
    attributes: frozenset[str]
    version: str


class Schemas:
    """Schemas of all providers whose bindings lie in a folder."""

    def __init__(self, folder: Path) -> None:
        names = {re.split(r"_provider_|-", path.name)[1]: path for path in folder.glob("cdktn_provider_*.whl")}
        self._wheels = {provider: zipfile.ZipFile(path) for provider, path in names.items()}

    @cache  # noqa: B019 - one object for each run
    def _classes(self, provider: str, module: str) -> dict[str, str] | None:
        """Return the text of each class; parsing all of them takes a minute."""
        wheel = self._wheels.get(provider)
        path = f"cdktn_provider_{provider}/{module}/__init__.py"
        if wheel is None or path not in wheel.namelist():
            return None
        return {found[2]: found[1] for found in _CLASS.finditer(wheel.read(path).decode("utf-8"))}

    @cache  # noqa: B019 - one object for each run
    def find(self, provider: str, module: str, kind: str = "") -> Schema | None:
        """Return the schema of a resource, of a data source, or of one of its nested objects; None if unknown."""
        classes = self._classes(provider, module)
        if classes is None:
            return None
        if not kind:
            kind = next(name for name, text in classes.items() if _BASE.match(text))
        if kind not in classes:
            return None
        (node,) = ast.parse(classes[kind]).body
        assert isinstance(node, ast.ClassDef)
        version = re.search(r"registry\.terraform\.io/providers/\w+/\w+/([\d.]+)", ast.get_docstring(node) or "")
        return Schema(dict(_arguments(node, set(classes))), _properties(node), version[1] if version else "")


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _arguments(node: ast.ClassDef, classes: set[str]) -> Iterator[tuple[str, Argument]]:
    """Yield the arguments of a class's constructor under the names that Terraform gives them."""
    init = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    documents = dict(re.findall(r"^ *:param (\w+): ?(.*)$", ast.get_docstring(init) or "", re.MULTILINE))
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        text, kind = documents.get(argument.arg, ""), ast.unparse(argument.annotation or ast.Constant(""))
        linked = re.search(r"/docs[^\s#]*#(\w+) ", text)
        if linked is None:
            continue
        nested = [name for name in re.findall(r"'(\w+)'", kind) if name in classes]
        is_described = not text.startswith(("Docs at", f"{linked[1]} block"))
        is_block = None if nested and is_described else text.startswith(f"{linked[1]} block")
        yield linked[1], Argument(default is None, is_block, "Sequence" in kind, nested[0] if nested else "")


def _properties(node: ast.ClassDef) -> frozenset[str]:
    """Return the names of a class's attributes without underscores, which the bindings place by rules of their own."""
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    return frozenset(
        item.name.replace("_", "") for item in functions if any(_last(one) == "property" for one in item.decorator_list)
    )


@dataclass(frozen=True)
class Module:
    """All files of one folder as one document."""

    name: str
    blocks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def named(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the blocks of a kind by their label."""
        return {
            _plain(name): body for block in self.blocks.get(kind, ()) for name, body in block.items() if _is_block(body)
        }

    def objects(self, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Return resources, or data sources, by type and label."""
        return {
            (_plain(type_), _plain(name)): body
            for block in self.blocks.get(kind, ()) for type_, labels in block.items() for name, body in labels.items()
        }  # fmt: skip


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and "__is_block__" in value


def _plain(label: str) -> str:
    return label.strip('"')


def read_modules(root: Path) -> tuple[dict[str, Module], list[str]]:
    """Return every module by its folder, and the files that are not HCL."""
    import hcl2  # noqa: PLC0415 - of the folder of tools

    modules: dict[str, Module] = {}
    broken = []
    for path in sorted(root.glob("infra/*/*.tf")):
        module = modules.setdefault(path.parent.name, Module(path.parent.name))
        try:
            document = hcl2.loads(path.read_text("utf-8"))
        except Exception as error:  # noqa: BLE001 - of lark, in several kinds
            broken.append(f"{path.relative_to(root)}: {str(error).splitlines()[0]}")
            continue
        for kind, blocks in document.items():
            if isinstance(blocks, list):
                module.blocks.setdefault(kind, []).extend(blocks)
    return modules, broken


def check_modules(root: Path, schemas: Schemas) -> Iterator[str]:
    """Yield each argument, block or reference that the schemas do not know."""
    modules, broken = read_modules(root)
    yield from broken
    for module in modules.values():
        for kind in ("resource", "data"):
            for (type_, label), body in module.objects(kind).items():
                own = {name: value for name, value in body.items() if name not in _META}
                name = f"{'data.' * (kind == 'data')}{type_}.{label}"
                yield from _check_object(f"infra/{module.name}: {name}", own, schemas, _place(kind, type_))
        for provider, body in module.named("provider").items():
            name = f"infra/{module.name}: provider.{provider}"
            yield from _check_object(name, body, schemas, (provider, "provider"))
        yield from _check_versions(module, schemas)
        yield from _check_calls(module, modules)
        yield from _check_references(module, modules, schemas)


def _place(kind: str, type_: str) -> tuple[str, str]:
    """Return the provider of a type, and the folder of its bindings."""
    provider, _, name = type_.partition("_")
    return provider, f"data_{type_}" if kind == "data" else name


def _check_object(where: str, body: dict[str, Any], schemas: Schemas, place: tuple[str, str]) -> Iterator[str]:
    found = schemas.find(*place)
    if found is None:
        yield f"{where}: unknown type"
    else:
        yield from _check_body(where, body, found, schemas, place)


def _check_body(
    where: str, body: dict[str, Any], schema: Schema, schemas: Schemas, place: tuple[str, str]
) -> Iterator[str]:
    """Yield what is unknown, missing, or a block instead of an argument."""
    given = {name: value for name, value in _expanded(body).items() if not name.startswith("__")}
    for name, value in given.items():
        argument = schema.arguments.get(name)
        if argument is None:
            yield f"{where}: {name}: unknown argument"
            continue
        items = value if isinstance(value, list) else [value]
        is_block = bool(items) and all(map(_is_block, items))
        if argument.is_block is not None and is_block != argument.is_block:
            yield f"{where}: {name}: {'an argument, and no block' if is_block else 'a block, and no argument'}"
        elif is_block and len(items) > 1 and not argument.is_repeated:
            yield f"{where}: {name}: may be given once"
        nested = schemas.find(*place, argument.kind) if argument.kind else None
        for item in items:
            if isinstance(item, dict) and nested is not None:
                yield from _check_body(f"{where}.{name}", item, nested, schemas, place)
    for name, argument in schema.arguments.items():
        if argument.is_required and name not in given:
            yield f"{where}: {name}: missing"


def _expanded(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body whose dynamic blocks are their content."""
    known = {_plain(name): value for name, value in body.items() if name != "dynamic"}
    for block in body.get("dynamic", ()):
        for name, dynamic in block.items():
            if _is_block(dynamic):
                known.setdefault(_plain(name), []).extend(dynamic["content"])
    return known


def _check_versions(module: Module, schemas: Schemas) -> Iterator[str]:
    """Yield providers that a module uses without requiring the version of their schema."""
    used = {type_.partition("_")[0] for kind in ("resource", "data") for type_, _ in module.objects(kind)}
    pinned: dict[str, Any] = {}
    for block in module.blocks.get("terraform", ()):
        for providers in block.get("required_providers", ()):
            pinned |= {name: value for name, value in providers.items() if isinstance(value, dict)}
    for provider in sorted(used - pinned.keys()):
        yield f"infra/{module.name}: {provider}: no version is required"
    for provider, value in pinned.items():
        found = schemas.find(provider, "provider")
        wanted = f"~> {'.'.join(found.version.split('.')[:2])}" if found else ""
        if not wanted or _plain(str(value.get("version", ""))) != wanted:
            yield f"infra/{module.name}: {provider}: version: is not that of its schema ({wanted or 'unknown'})"


def _check_calls(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    """Yield values that a called module does not take, or lacks."""
    for label, body in module.named("module").items():
        called = modules.get(_plain(str(body.get("source", ""))).rpartition("/")[2])
        if called is None:
            yield f"infra/{module.name}: module.{label}: source: no such module"
            continue
        variables = called.named("variable")
        given = {name for name in body if name not in {"source", "providers"} | _META and not name.startswith("__")}
        for name in sorted(given - variables.keys()):
            yield f"infra/{module.name}: module.{label}: {name}: unknown argument"
        for name in sorted(variables.keys() - given):
            if "default" not in variables[name]:
                yield f"infra/{module.name}: module.{label}: {name}: missing"


def _check_references(module: Module, modules: dict[str, Module], schemas: Schemas) -> Iterator[str]:
    """Yield names that nothing of the module has."""
    known = {"local": {name for block in module.blocks.get("locals", ()) for name in block}}
    known["var"] = set(module.named("variable"))
    references = sorted(_references(module.blocks))
    for first, second, _, third in references:
        where = f"infra/{module.name}: {first}.{second}"
        if first in known:
            if second not in known[first]:
                yield f"{where}: is not declared"
        elif first == "module":
            source = _plain(str(module.named("module").get(second, {}).get("source", ""))).rpartition("/")[2]
            if source not in modules or third not in modules[source].named("output"):
                yield f"{where}.{third}: no such output"
        elif "_" in first:
            yield from _check_attribute(where, module, schemas, (first, second, third))
    used = {second for first, second, *_ in references if first == "var"}
    for name in sorted(known["var"] - used):
        yield f"infra/{module.name}: variable.{name}: unused"


def _check_attribute(where: str, module: Module, schemas: Schemas, reference: tuple[str, str, str]) -> Iterator[str]:
    """Yield a reference to a resource or a data source that has no such name or attribute."""
    first, label, attribute = reference
    kind, type_ = ("data" if first.startswith("data.") else "resource"), first.removeprefix("data.")
    found = schemas.find(*_place(kind, type_))
    if (type_, label) not in module.objects(kind):
        yield f"{where}: no such {kind}"
    elif attribute and found is not None:
        known = found.attributes | {name.replace("_", "") for name in found.arguments}
        if attribute.replace("_", "") not in known:
            yield f"{where}.{attribute}: no such attribute"


def _references(part: Any) -> set[tuple[str, str, str, str]]:
    """Return every reference of the expressions in a part."""
    if isinstance(part, dict):
        found = set().union(*(_references(value) for value in part.values()))
        # A dynamic block's label is the name of its iterator.
        iterators = {_plain(label) for block in part.get("dynamic", ()) for label in block}
        return {
            reference for reference in found if not (reference[0] in iterators and reference[1] in {"key", "value"})
        }
    if isinstance(part, list):
        return set().union(*map(_references, part))
    return set(_REFERENCE.findall(part)) if isinstance(part, str) and "${" in part else set()
