# ruff: noqa: ARG002, N802 - names and arguments are those of the protocol
"""Stub providers for the engine: the real providers' schemas, and no cloud.

They plan as a provider does (values that it computes are unknown until apply), and create nothing, but for what a test
registers. The engine attaches to them by `TF_REATTACH_PROVIDERS`: nothing is installed, and no process is started.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgpack
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

_UNKNOWN = msgpack.ExtType(0, b"\x00")
_SECRET = {("random_password", "result"), ("tls_private_key", "private_key_pem")}

Maker = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """What the providers answer, which may change while they are served, and what they were told."""

    answers: dict[str, Any] = field(default_factory=dict)
    """Values of data sources and computed attributes: by `TYPE` (a dictionary), by `TYPE.NAME`, or by `NAME`."""
    makers: dict[str, Maker] = field(default_factory=dict)
    """By type: a function that creates a resource somewhere, and returns what was computed."""
    configured: dict[str, Any] = field(default_factory=dict)
    """Each provider's own configuration, of the last run."""


@contextmanager
def serve(schemas: Mapping[str, Any], case: Case) -> Iterator[dict[str, str]]:
    """Serve all providers; yield the environment in which the engine finds them."""
    servers, found = [], dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        for name, schema in schemas.items():
            server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
            rpc.add_ProviderServicer_to_server(_Provider(name, schema, case), server)
            socket = str(Path(folder) / f"{name}.sock")
            server.add_insecure_port(f"unix://{socket}")
            server.start()
            servers.append(server)
            place = {
                "Protocol": "grpc", "ProtocolVersion": 6, "Pid": os.getpid(), "Test": True,
                "Addr": {"Network": "unix", "String": socket},
            }  # fmt: skip
            found |= {f"registry.{host}/hashicorp/{name}": place for host in ("terraform.io", "opentofu.org")}
        try:
            yield {"TF_REATTACH_PROVIDERS": json.dumps(found)}
        finally:
            for server in servers:
                server.stop(0)


class _Provider(rpc.ProviderServicer):  # type: ignore[misc] - generated
    def __init__(self, name: str, schema: Mapping[str, Any], case: Case) -> None:
        self._name, self._schema = name, schema
        self._answers, self._makers, self._configured = case.answers, case.makers, case.configured

    def GetMetadata(self, request: Any, context: Any) -> Any:
        return pb.GetMetadata.Response(
            resources=[pb.GetMetadata.ResourceMetadata(type_name=name) for name in self._schema["resource"]],
            data_sources=[pb.GetMetadata.DataSourceMetadata(type_name=name) for name in self._schema["data"]],
        )

    def GetProviderSchema(self, request: Any, context: Any) -> Any:
        return pb.GetProviderSchema.Response(
            provider=pb.Schema(block=_block(self._schema["provider"])),
            resource_schemas={
                name: pb.Schema(block=_block(body, name)) for name, body in self._schema["resource"].items()
            },
            data_source_schemas={name: pb.Schema(block=_block(body)) for name, body in self._schema["data"].items()},
        )

    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:
        return pb.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:
        return pb.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:
        return pb.ValidateDataResourceConfig.Response()

    def ConfigureProvider(self, request: Any, context: Any) -> Any:
        self._configured[self._name] = _read(request.config)
        return pb.ConfigureProvider.Response()

    def UpgradeResourceState(self, request: Any, context: Any) -> Any:
        return pb.UpgradeResourceState.Response(upgraded_state=pb.DynamicValue(json=request.raw_state.json))

    def ReadResource(self, request: Any, context: Any) -> Any:
        return pb.ReadResource.Response(new_state=request.current_state)

    def PlanResourceChange(self, request: Any, context: Any) -> Any:
        value = _read(request.proposed_new_state)
        if value is not None and _read(request.prior_state) is None:
            value = _planned(self._schema["resource"][request.type_name], value)
        return pb.PlanResourceChange.Response(planned_state=_written(value), legacy_type_system=True)

    def ApplyResourceChange(self, request: Any, context: Any) -> Any:
        value, type_ = _read(request.planned_state), request.type_name
        if value is None:
            return pb.ApplyResourceChange.Response(new_state=request.planned_state)
        value = self._known(self._schema["resource"][type_], value, type_)
        label = value.get("bucket") or value.get("name")
        if value.get("id") == f"made-{type_}.id" and label:
            value["id"] += f".{label}"
        try:
            value |= self._makers[type_](value) if type_ in self._makers else {}
        except Exception as error:  # noqa: BLE001 - a provider's process boundary
            said = pb.Diagnostic(severity=pb.Diagnostic.ERROR, summary=f"{type_}: {type(error).__name__}: {error}")
            return pb.ApplyResourceChange.Response(new_state=request.prior_state, diagnostics=[said])
        return pb.ApplyResourceChange.Response(new_state=_written(value), legacy_type_system=True)

    def ReadDataSource(self, request: Any, context: Any) -> Any:
        body = self._schema["data"][request.type_name]
        value = self._known(body, _planned(body, _read(request.config)), request.type_name)
        return pb.ReadDataSource.Response(state=_written(value | self._answers.get(request.type_name, {})))

    def _known(self, body: Any, value: Any, where: str) -> Any:
        """Return a value whose unknown parts are answered."""
        if value is None:
            return None
        known = {name: self._answered(body["attributes"][name]["type"], part, f"{where}.{name}")
                 for name, part in value.items() if name in body["attributes"]}  # fmt: skip
        for name, block in body["blocks"].items():
            part = value.get(name)
            if isinstance(part, list):
                known[name] = [self._known(block["body"], item, f"{where}.{name}") for item in part]
            else:
                known[name] = self._known(block["body"], part, f"{where}.{name}") if isinstance(part, dict) else part
        return known

    def _answered(self, type_: Any, value: Any, where: str) -> Any:
        if isinstance(value, list):
            return [self._answered("string", item, where) for item in value]
        if isinstance(value, dict):
            return {name: self._answered("string", item, f"{where}.{name}") for name, item in value.items()}
        return self._invented(type_, where) if isinstance(value, msgpack.ExtType) else value

    def _invented(self, type_: Any, where: str) -> Any:
        """Return a computed value: the case's, or one that names its place."""
        for name in (where, where.rpartition(".")[2]):
            if name in self._answers:
                return self._answers[name]
        if isinstance(type_, str):
            return {"string": f"made-{where}", "number": 1, "bool": True}.get(type_)
        kind, inner = type_
        if kind == "object":
            return {name: self._invented(each, f"{where}.{name}") for name, each in inner.items()}
        return {} if kind == "map" else [] if isinstance(inner, str) else [self._invented(inner, where)]


def _block(body: Any, type_: str = "") -> Any:
    block = pb.Schema.Block(version=0)
    for name, attribute in body["attributes"].items():
        is_needed = attribute["required"]
        block.attributes.append(pb.Schema.Attribute(
            name=name, type=json.dumps(attribute["type"]).encode(), required=is_needed,
            optional=attribute["optional"] and not is_needed, computed=attribute["computed"] and not is_needed,
            sensitive=(type_, name) in _SECRET,
        ))  # fmt: skip
    for name, nested in body["blocks"].items():
        is_single = nested["nesting"] == "single"
        block.block_types.append(pb.Schema.NestedBlock(
            type_name=name, block=_block(nested["body"]),
            nesting=getattr(pb.Schema.NestedBlock, nested["nesting"].upper()),
            max_items=int(nested["is_one"] and not is_single), min_items=int(nested["required"] and not is_single),
        ))  # fmt: skip
    return block


def _planned(body: Any, value: Any) -> Any:
    """Return a planned value: what the provider computes, and nothing else gives, is unknown."""
    if not isinstance(value, dict):
        return value
    planned = dict(value)
    for name, attribute in body["attributes"].items():
        if attribute["computed"] and not attribute["required"] and planned.get(name) is None:
            planned[name] = _UNKNOWN
    for name, block in body["blocks"].items():
        part = planned.get(name)
        is_many = isinstance(part, list)
        planned[name] = [_planned(block["body"], item) for item in part] if is_many else _planned(block["body"], part)
    return planned


def _read(value: Any) -> Any:
    return msgpack.unpackb(value.msgpack, ext_hook=msgpack.ExtType, strict_map_key=False) if value.msgpack else None


def _written(value: Any) -> Any:
    return pb.DynamicValue(msgpack=msgpack.packb(value))
