"""`plumbline doctor --workers`: a healthy worker, and one with every problem."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient

import plumbline
from plumbline.cli.main import main
from plumbline.local import services
from plumbline.local.process import Child, start, stop
from plumbline.local.stack import CONTROLLERS
from plumbline.night.doctor.place import cuda_of_torch, installed_gpus
from plumbline.schema.manifest import DataFile, Manifest, Shard
from plumbline.schema.suite import Suite
from tests.flows.clocks import jumped_clock
from tests.flows.conftest import Server
from tests.flows.small_suite import write_suite
from tests.flows.stubs import deploy

StartWorker = Callable[[str, dict[str, str]], None]


@pytest.fixture
def start_worker(server: Server, suite: Suite, tmp_path: Path, client: SyncPrefectClient) -> Iterator[StartWorker]:
    """Start a platform's worker; return once it is online."""
    workers: list[Child] = []

    def begin(platform: str, environment: dict[str, str]) -> None:
        pool = suite.platforms[platform].work_pool if platform in suite.platforms else f"{suite.name}-ctl"
        home = tmp_path / "home" / platform
        every = {**server.environment(home), "PLUMBLINE_CACHE": str(tmp_path / "cache"), **environment}
        command = services.worker_command(pool, f"{platform}-doctor")
        workers.append(start(pool, command, log=tmp_path / f"{platform}.log", environment=every, folder=home))
        deadline = time.monotonic() + 300
        while not client.read_workers_for_work_pool(pool):
            assert time.monotonic() < deadline, workers[-1].last_lines()
            time.sleep(0.1)

    yield begin
    stop(workers, grace_seconds=10)


def publish_manifest(data: str, shards: int, size: int) -> None:
    train = [
        Shard(key=f"train-{index}.parquet", size=size, sha256="0" * 64, num_rows=8, rows_sha256="0" * 64)
        for index in range(shards)
    ]
    tokenizer = DataFile(key="tokenizer.json", size=10, sha256="0" * 64)
    shape = {
        "train": train,
        "evaluation": (train[0].replace(key="evaluation.parquet", size=0),),
        "tokenizer": tokenizer,
    }
    manifest = Manifest(name="reviews", task="sequence-classification", vocab_size=64, num_labels=2, **shape)
    folder = Path(data.removeprefix("file://")) / "reviews"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    for file in manifest.files:
        (folder / file.key).write_bytes(b"x")


def sick_place(folder: Path) -> dict[str, str]:
    """Return the environment of a worker with wrong versions, a wrong GELU and a clock an hour ahead."""
    site = folder / "site"
    source = Path(plumbline.__file__).parent
    shutil.copytree(source, site / "plumbline", ignore=shutil.ignore_patterns("__pycache__"))
    text = (source / "__init__.py").read_text(encoding="utf-8").replace(plumbline.__version__, "0.0.9")
    (site / "plumbline" / "__init__.py").write_text(text, encoding="utf-8")
    operations = site / "plumbline" / "train" / "portable" / "fp64.py"
    call = "        result = func("
    wrong = f'        args = (args[0] * 1.00000001, *args[1:]) if name == "gelu" else args\n{call}'
    operations.write_text(operations.read_text(encoding="utf-8").replace(call, wrong), encoding="utf-8")
    (site / "torch-2.12.1.dist-info").mkdir()
    (site / "torch-2.12.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.12.1\n", encoding="utf-8")
    return {"PYTHONPATH": str(site), **jumped_clock(folder, 3600.0)}


@pytest.mark.long
@pytest.mark.compiler
def test_what_the_workers_see(
    start_worker: StartWorker, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws, azure = (suite.platforms[name].model_dump(exclude_none=True) for name in ("aws", "azure"))
    suite = suite.replace(platforms={"aws": aws, "azure": {**azure, "accelerator": "NVIDIA A10G"}})
    publish_manifest(suite.platforms["aws"].data, 1, 1 << 20)
    publish_manifest(suite.platforms["azure"].data, 64, 1 << 40)
    path = write_suite(suite, tmp_path)
    # A pool of its own: rounds of other tests wait in the shared one.
    deploy(suite, controllers=f"{suite.name}-ctl")
    start_worker(CONTROLLERS, {})
    start_worker("aws", {})
    start_worker("azure", sick_place(tmp_path))
    assert main(["doctor", str(path), "--state", str(tmp_path), "--workers", "--json"]) == 2
    result = {item["where"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    ill = {where: (item["what"], item["hint"]) for where, item in result.items() if not item["well"]}
    sick = {f"azure's {what}" for what in ("clock", "disk", "plumbline", "torch", "accelerator", "training stack")}
    # A CUDA build of torch needs a driver for the GPU that this platform names.
    assert ill.keys() == sick | ({"azure's driver"} if cuda_of_torch() and not installed_gpus()[1] else set())
    assert ill["azure's clock"][0].endswith("s ahead of this machine's")
    assert 3500 < float(ill["azure's clock"][0].split()[0]) <= 3600
    assert "time service" in ill["azure's clock"][1]
    assert "free at least 65538 GiB" in ill["azure's disk"][1]
    assert ill["azure's plumbline"][0] == f"version 0.0.9, here it is {plumbline.__version__}"
    assert ill["azure's torch"][0].startswith("version 2.12.1, the reference platform has 2.")
    assert "lock file" in ill["azure's torch"][1]
    assert ill["azure's accelerator"][0].endswith("expected: NVIDIA A10G")
    found = ill["azure's training stack"][0]
    assert found.startswith("computes wrong numbers: outputs of step 0: bert.encoder.layer.0")
    assert result["aws's training stack"]["what"] == "computes the right numbers"
    for name in ("aws", "azure"):
        assert result[f"{name}'s worker, outbox"]["well"]
        assert result[f"{name}'s worker, data"]["well"]
    assert result["aws's torch"]["well"]
    assert any(where.startswith("controllers's ") for where in result), result.keys()
