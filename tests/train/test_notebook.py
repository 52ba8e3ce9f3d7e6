"""Notebook for Colab-like machines, executed completely without network."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from plumbline.cli.main import main
from plumbline.schema.record import read_record
from plumbline.schema.spec import read_spec
from plumbline.train.job import TrainJob, run_job
from plumbline.train.weights import make_weights
from tests.flows.small_suite import small_suite, write_suite

NOTEBOOK = Path(__file__).resolve().parents[2] / "deployments" / "notebooks" / "plumbline.ipynb"


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    # `test_pieces.py` makes weights in a separate process.
    monkeypatch.setattr("plumbline.cli.spec.make_weights", make_weights)
    suite = write_suite(small_suite(tmp_path, "demo", ("onprem",), steps=2), tmp_path)
    spec = tmp_path / "bundle" / "spec.json"
    assert main(["spec", str(suite), "tiny", "--out", str(spec)]) == 0
    return spec


def executed(folder, **settings):
    """Execute the notebook in `folder`; return the outputs of each cell."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    # A proxy that leads nowhere: whoever asks the network gets an error at once.
    offline = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    client.execute(env={**os.environ, **offline, "IPYTHONDIR": str(folder / "ipython"), **settings})
    return {
        cell["id"]: "".join(output.get("text", "") for output in cell["outputs"])
        for cell in notebook.cells
        if cell["cell_type"] == "code"
    }


@pytest.mark.long
def test_the_notebook_trains_compares_and_imports(bundle, tmp_path):
    reference, record = tmp_path / "reference", tmp_path / "record"
    data, cache = f"file://{bundle.parent}/data", tmp_path / "cache"
    job = TrainJob(spec=read_spec(bundle), out=reference, data=data, cache=cache, platform="here", record_id="here")
    run_job(job, threading.Event())
    output = executed(
        tmp_path,
        PLUMBLINE_SPEC=str(bundle),
        PLUMBLINE_RECORD=str(record),
        PLUMBLINE_REFERENCE=str(reference),
        PLUMBLINE_STORE=f"file://{tmp_path}/central",
        HOME=str(tmp_path),
    )
    assert "torch 2." in output["install"]
    assert output["compare"].rstrip().endswith("verdict: pass")
    result, expected = read_record(record), read_record(reference)
    assert result.platform == "notebook"
    assert result.evidence.probe.steps_of() == expected.evidence.probe.steps_of()
    assert f"weights {result.evidence.probe.steps_of()[-1].weights}" in output["record"]
    assert (tmp_path / "central" / "records" / result.record_id / "record.json").is_file()
    assert socket.gethostname() == result.fingerprint.hostname


def test_the_notebook_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
