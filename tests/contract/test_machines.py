"""Groups of machines: EC2's on moto's server, Azure's and Google's on a strict fake of their REST APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from plumbline.night.machines import azure, gcp, open_group
from plumbline.schema.errors import AccessError, ConfigurationError, UnavailableError
from tests.http_server import Handler, Server
from tests.scaling_group import scaling_group

SUBSCRIPTION = "01234567-89ab-cdef-0123-456789abcdef"
AZURE = f"azure://{SUBSCRIPTION}/ml/gpus"
GCP = "gcp://acme/europe-west4-a/gpus"
SCALE_SET = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/ml/providers/Microsoft.Compute/virtualMachineScaleSets/gpus"
MANAGER = "/compute/v1/projects/acme/zones/europe-west4-a/instanceGroupManagers/gpus"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a client of moto's server, which has one group."""
    with scaling_group(monkeypatch) as client:
        yield client


def test_an_auto_scaling_group_goes_up_and_down(scaling: Any) -> None:
    group = open_group("aws://eu-west-1/gpus")
    assert group.size() == 0
    group.resize(2)
    assert group.size() == 2
    found = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpus"])["AutoScalingGroups"][0]
    assert len(found["Instances"]) == 2
    group.resize(0)
    group.resize(0)
    assert group.size() == 0
    with pytest.raises(ConfigurationError, match=r"^aws://eu-west-1/gone: the Auto Scaling group does not exist"):
        open_group("aws://eu-west-1/gone").size()


def test_a_cloud_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UnavailableError, match=r"^aws://eu-west-1/gpus: EndpointConnectionError"):
        open_group("aws://eu-west-1/gpus").size()


class _Clouds(Handler):
    """Both management APIs: each path, method, version, token and body has to be right."""

    sizes: dict[str, int]

    def _answer(self, status: int, content: Any) -> None:
        self.reply(status, json.dumps(content).encode())

    def answer(self) -> None:
        body = json.loads(self.body() or b"{}")
        path, _, query = self.path.partition("?")
        if self.headers.get("Authorization") != "Bearer token":
            self._answer(403, {"error": {"code": "AuthorizationFailed"}})
        elif path == SCALE_SET and query == "api-version=2024-07-01" and self.command in {"GET", "PATCH"}:
            sku = {"name": "Standard_NC24ads_A100_v4", "tier": "Standard", "capacity": self.sizes["azure"]}
            if self.command == "PATCH":
                if set(body) != {"sku"} or {**body["sku"], "capacity": 0} != {**sku, "capacity": 0}:
                    return self._answer(400, {"error": {"code": "InvalidParameter", "message": str(body)}})
                if body["sku"]["capacity"] > 4:
                    return self._answer(409, {"error": {"code": "OperationNotAllowed", "message": "Quota exceeded"}})
                self.sizes["azure"] = body["sku"]["capacity"]
            self._answer(200, {"sku": {**sku, "capacity": self.sizes["azure"]}})
        elif path == MANAGER and self.command == "GET":
            self._answer(200, {"targetSize": self.sizes["gcp"]})
        elif path == f"{MANAGER}/resize" and self.command == "POST":
            self.sizes["gcp"] = int(query.removeprefix("size="))
            self._answer(200, {"kind": "compute#operation", "status": "PENDING"})
        else:
            self._answer(404, {"error": {"code": "NotFound"}})
        return None


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Yield the sizes of both groups, behind identities whose token the test may change."""
    state = SimpleNamespace(sizes={"azure": 0, "gcp": 0}, token="token")
    server = Server(type("Clouds", (_Clouds,), {"sizes": state.sizes}))
    server.start()
    address = server.url
    for module in (azure, gcp):
        monkeypatch.setattr(module, "_ENDPOINT", address)

    class Identity:
        def get_token(self, scope: str) -> SimpleNamespace:
            assert scope == f"{address}/.default"
            return SimpleNamespace(token=state.token)

    class Session:
        def __init__(self, _: object) -> None:
            self._session = requests.Session()
            self._session.headers["Authorization"] = f"Bearer {state.token}"

        def request(self, *args: Any, **options: Any) -> Any:
            return self._session.request(*args, **options)

    monkeypatch.setattr("azure.identity.DefaultAzureCredential", Identity)
    monkeypatch.setattr("google.auth.default", lambda scopes: (scopes, "acme"))
    monkeypatch.setattr("google.auth.transport.requests.AuthorizedSession", Session)
    yield state
    server.stop()


@pytest.mark.parametrize(("url", "cloud"), [(AZURE, "azure"), (GCP, "gcp")])
def test_a_group_by_its_rest_api_goes_up_and_down(clouds: SimpleNamespace, url: str, cloud: str) -> None:
    group = open_group(url)
    assert group.size() == 0
    group.resize(3)
    assert (group.size(), clouds.sizes[cloud]) == (3, 3)
    group.resize(0)
    assert clouds.sizes[cloud] == 0
    clouds.token = "expired"
    with pytest.raises(AccessError, match=rf"^{url}: refused: HTTP 403.*hint: docs/how-to/machines-for-a-round.md"):
        group.resize(1)
    clouds.token = "token"
    with pytest.raises(ConfigurationError, match="gone: does not exist"):
        open_group(url.replace("gpus", "gone")).size()


@pytest.mark.usefixtures("clouds")
def test_a_quota_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match=rf"^{AZURE}: HTTP 409: .*Quota exceeded.*quota\)$"):
        open_group(AZURE).resize(9)
