# ruff: noqa: E501 - values and messages on one line
"""Makers of the AWS module's resources on moto's server, by boto3 and from resolved values alone.

No bucket policies: moto applies them without their conditions, and would refuse everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import boto3
from moto.server import ThreadedMotoServer
from providers import Maker

REGION = "us-east-1"
Value = dict[str, Any]


@contextmanager
def serve_aws() -> Iterator[tuple[str, dict[str, Maker]]]:
    """Yield the address of moto's server, and the makers of the resources on it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}", _Makers(f"http://{host}:{port}").all()
    finally:
        server.stop()


class _Makers:
    """A method for each type, whose arguments are the resolved values."""

    def __init__(self, url: str) -> None:
        make = partial(
            boto3.client,
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id="x",
            aws_secret_access_key="y",  # noqa: S106 - of moto
        )
        self.ec2, self.iam, self.s3, self.ssm = make("ec2"), make("iam"), make("s3"), make("ssm")
        self.scaling = make("autoscaling")

    def all(self) -> dict[str, Maker]:
        return {f"aws_{name}": getattr(self, name) for name in dir(self) if name[:4] in _PREFIXES}

    def vpc(self, of: Value) -> Value:
        return {"id": self.ec2.create_vpc(CidrBlock=of["cidr_block"])["Vpc"]["VpcId"]}

    def internet_gateway(self, of: Value) -> Value:
        made = self.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        self.ec2.attach_internet_gateway(InternetGatewayId=made, VpcId=of["vpc_id"])
        return {"id": made}

    def subnet(self, of: Value) -> Value:
        places = {"VpcId": of["vpc_id"], "CidrBlock": of["cidr_block"], "AvailabilityZone": of["availability_zone"]}
        return {"id": self.ec2.create_subnet(**places)["Subnet"]["SubnetId"]}

    def route_table(self, of: Value) -> Value:
        return {"id": self.ec2.create_route_table(VpcId=of["vpc_id"])["RouteTable"]["RouteTableId"]}

    def route(self, of: Value) -> Value:
        self.ec2.create_route(
            RouteTableId=of["route_table_id"],
            DestinationCidrBlock=of["destination_cidr_block"],
            GatewayId=of["gateway_id"],
        )
        return {}

    def security_group(self, of: Value) -> Value:
        made = self.ec2.create_security_group(GroupName=of["name"], Description=of["description"], VpcId=of["vpc_id"])
        return {"id": made["GroupId"]}

    def launch_template(self, of: Value) -> Value:
        network, metadata, disk = of["network_interfaces"][0], of["metadata_options"][0], of["block_device_mappings"][0]
        data = {
            "ImageId": of["image_id"], "InstanceType": of["instance_type"], "UserData": of["user_data"],
            "IamInstanceProfile": {"Arn": of["iam_instance_profile"][0]["arn"]},
            "NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": True, "Groups": network["security_groups"]}],
            "MetadataOptions": {"HttpTokens": metadata["http_tokens"], "HttpEndpoint": metadata["http_endpoint"]},
            "BlockDeviceMappings": [{"DeviceName": disk["device_name"], "Ebs": {"VolumeSize": int(disk["ebs"][0]["volume_size"])}}],
        }  # fmt: skip
        made = self.ec2.create_launch_template(LaunchTemplateName=f"{of['name_prefix']}1", LaunchTemplateData=data)
        return {"id": made["LaunchTemplate"]["LaunchTemplateId"], "latest_version": 1}

    def autoscaling_group(self, of: Value) -> Value:
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName=of["name"], MinSize=int(of["min_size"]), MaxSize=int(of["max_size"]),
            DesiredCapacity=int(of["desired_capacity"]), VPCZoneIdentifier=",".join(of["vpc_zone_identifier"]),
            LaunchTemplate={"LaunchTemplateId": of["launch_template"][0]["id"], "Version": "1"},
        )  # fmt: skip
        found = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[of["name"]])["AutoScalingGroups"][0]
        return {"id": of["name"], "arn": found["AutoScalingGroupARN"]}

    def autoscaling_schedule(self, of: Value) -> Value:
        self.scaling.put_scheduled_update_group_action(
            AutoScalingGroupName=of["autoscaling_group_name"], ScheduledActionName=of["scheduled_action_name"],
            Recurrence=of["recurrence"], DesiredCapacity=int(of["desired_capacity"]), TimeZone=of["time_zone"],
        )  # fmt: skip
        return {}

    def iam_role(self, of: Value) -> Value:
        made = self.iam.create_role(RoleName=of["name"], AssumeRolePolicyDocument=of["assume_role_policy"])
        return {"id": of["name"], "arn": made["Role"]["Arn"]}

    def iam_role_policy(self, of: Value) -> Value:
        self.iam.put_role_policy(RoleName=of["role"], PolicyName=of["name"], PolicyDocument=of["policy"])
        return {}

    def iam_instance_profile(self, of: Value) -> Value:
        made = self.iam.create_instance_profile(InstanceProfileName=of["name"])["InstanceProfile"]
        self.iam.add_role_to_instance_profile(InstanceProfileName=of["name"], RoleName=of["role"])
        return {"id": of["name"], "arn": made["Arn"]}

    def ssm_parameter(self, of: Value) -> Value:
        self.ssm.put_parameter(Name=of["name"], Type=of["type"], Value=of["value"])
        return {"arn": self.ssm.get_parameter(Name=of["name"])["Parameter"]["ARN"]}

    def s3_bucket(self, of: Value) -> Value:
        self.s3.create_bucket(Bucket=of["bucket"])
        return {"id": of["bucket"], "arn": f"arn:aws:s3:::{of['bucket']}"}

    def s3_bucket_versioning(self, of: Value) -> Value:
        settings = {"Status": of["versioning_configuration"][0]["status"]}
        self.s3.put_bucket_versioning(Bucket=of["bucket"], VersioningConfiguration=settings)
        return {}


_PREFIXES = ("vpc", "inte", "subn", "rout", "secu", "laun", "auto", "iam_", "ssm_", "s3_b")
