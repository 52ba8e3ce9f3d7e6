"""Group of machines on moto's server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer


@contextmanager
def scaling_group(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a client of moto's server, which has two groups of at most four machines."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        requests.post(f"http://{host}:{port}/moto-api/reset", timeout=300)  # its state is the process's
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        client = boto3.client("autoscaling", region_name="eu-west-1")
        client.create_launch_configuration(
            LaunchConfigurationName="gpu", ImageId="ami-12c6146b", InstanceType="g5.2xlarge"
        )
        for name in ("gpus", "second"):
            client.create_auto_scaling_group(
                AutoScalingGroupName=name, LaunchConfigurationName="gpu", MinSize=0, MaxSize=4, DesiredCapacity=0,
                AvailabilityZones=["eu-west-1a"],
            )  # fmt: skip
        yield client
    finally:
        server.stop()
