# ruff: noqa: C901, E501, PLR0912 - one row is one function, whose messages are sentences
"""What has to hold of applied values: a function for each row of `infra/CLOUDS.md`, named as the row.

No schema says it. Each row reads what the engine resolved, of any spelling in the modules.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import yaml
from engine import Applied, Resource

Row = Callable[[Applied], Iterator[str]]
_POD = "system:serviceaccount:"
_WEEK = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
_SSD_GB = 250
"""Quota of a new project on Google Cloud."""
_USER_DATA_BYTES = 16 << 10
_LAST_MINUTE = 60
_IDLE_SECONDS, _MAX_SECONDS = 3600, 86400
_WINDOW_HOURS = 4
"""Longest wait of an upgrade after the round."""
# Users and groups of Ubuntu's base-passwd, and names that Azure refuses.
_TAKEN = frozenset("root daemon bin sys adm tty disk operator backup list user guest test admin administrator".split())  # noqa: SIM905
_STORE_ACTIONS = {"s3:GetObject", "s3:PutObject", "s3:ListBucket", "s3:AbortMultipartUpload"}
_AWS_ACTIONS = {
    "worker": {*_STORE_ACTIONS, "ssm:GetParameter", "autoscaling:TerminateInstanceInAutoScalingGroup"},
    "controller": {*_STORE_ACTIONS, "autoscaling:SetDesiredCapacity", "autoscaling:DescribeAutoScalingGroups"},
}
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"
_SETS = "Microsoft.Compute/virtualMachineScaleSets/"
_AZURE_ACTIONS = {
    f"{_BLOBS}read", f"{_BLOBS}write", f"{_BLOBS}add/action", f"{_SETS}read", f"{_SETS}write", f"{_SETS}delete/action",
}  # fmt: skip
_AZURE_ROLES = {None, "Storage Blob Data Reader", "Key Vault Secrets User", "Key Vault Secrets Officer"}
_GOOGLE_ACTIONS = {f"storage.objects.{name}" for name in ("create", "delete", "get", "list")}
_GOOGLE_ROLES = {
    "roles/container.defaultNodeServiceAccount",
    "roles/iam.workloadIdentityUser",
    "roles/storage.objectViewer",
}
_GOOGLE_SERVICES = {
    "google_compute": {"compute"}, "google_container": {"container", "iamcredentials"},
    "google_project_iam": {"cloudresourcemanager", "iam"}, "google_service_account": {"iam"},
    "google_service_networking": {"servicenetworking"}, "google_sql": {"sqladmin"}, "google_storage": {"storage"},
}  # fmt: skip
_AZURE_PROVIDERS = {
    "azurerm_linux_virtual_machine": "Compute", "azurerm_monitor": "Insights", "azurerm_key_vault": "KeyVault",
    "azurerm_user_assigned_identity": "ManagedIdentity", "azurerm_virtual_network": "Network",
    "azurerm_storage": "Storage",
}  # fmt: skip
_KEPT_BY_DESTROY = {
    "google_cloud_quotas_quota_preference",
    "aws_servicequotas_service_quota",
    "aws_iam_service_linked_role",
}
_IN_APPLY = {"docker_image", "docker_registry_image", "null_resource", "terraform_data"}
_POLICIES = {
    "google_service_networking_connection": "REMOVE_PEERING", "google_sql_user": "ABANDON",
    "google_sql_database": "ABANDON",
}  # fmt: skip


def first_start(applied: Applied) -> Iterator[str]:
    """Yield faults of what a machine gets at its first start."""
    secrets = [
        one.value["value"] for one in (*applied.of("aws_ssm_parameter"), *applied.of("azurerm_key_vault_secret"))
    ]
    for where, data in _user_data(applied):
        if len(base64.b64decode(data)) > _USER_DATA_BYTES:
            yield f"{where}: is larger than 16 KiB, which AWS refuses"
        if any(
            line.partition("=")[2] in base64.b64decode(data).decode()
            for text in secrets
            for line in text.split()
            if not line.endswith("=")
        ):
            yield f"{where}: contains the secret, which every process of the machine may read"
        files = _files(data)
        for path, text in files.items():
            command = (
                ["sh", "-n"] if text.startswith("#!/bin/sh") else ["python3", "-"] if "python3" in text[:20] else []
            )
            code = f"compile({text!r}, 'machine', 'exec')" if command[:1] == ["python3"] else text
            if (
                command
                and (
                    done := subprocess.run(command, input=code, capture_output=True, text=True, check=False)
                ).returncode
            ):
                yield f"{where}: {path}: {done.stderr.strip()}"
        unit = files["/etc/systemd/system/plumbline-worker.service"]
        run = next(line for line in unit.splitlines() if line.startswith("ExecStart=docker run"))
        if run.split()[-1] != applied.values["worker_image"] or "--gpus all" not in run:
            yield f"{where}: runs no worker with the GPU in the image {applied.values['worker_image']}"
        idle, most = re.findall(
            r"ExecStart=/etc/plumbline/watch (\d+) (\d+)", files["/etc/systemd/system/plumbline-watch.service"]
        )[0]
        if not 0 < int(idle) <= _IDLE_SECONDS or not int(idle) < int(most) <= _MAX_SECONDS:
            yield f"{where}: a machine without a training stays on for {idle} s, any for {most} s"
    for one in applied.of("aws_launch_template"):
        name = applied.of("aws_ssm_parameter")[0].value["name"]
        if f'--name "{name}"' not in _files(one.value["user_data"])["/etc/plumbline/machine"]:
            yield f"{one.address}: reads a different parameter than {name}"


def images(applied: Applied) -> Iterator[str]:
    """Yield programs that are not the given image by its digest, and images that apply builds."""
    for chart in applied.of("helm_release"):
        values = yaml.safe_load(chart.value["values"][0]) if chart.value["values"] else {}
        if "baseJobTemplate" in str(values):
            image = _template(values)["variables"]["properties"]["image"]["default"]
            if image != applied.values["worker_image"]:
                yield f"{chart.address}: pods run {image}, and machines {applied.values['worker_image']}"
        elif "plumbline-controller" in str(values):
            image = values["worker"]["image"]
            if f"{image['repository']}:{image['prefectTag']}" != applied.values["controller_image"]:
                yield f"{chart.address}: runs {image} instead of {applied.values['controller_image']}"
    for one in applied.resources:
        if one.type in _IN_APPLY:
            yield f"{one.address}: builds or runs something inside apply, which ends after 20 minutes"


def pods(applied: Applied) -> Iterator[str]:
    """Yield identities of pods that do not exist, or that everybody of the cluster has."""
    known = _service_accounts(applied)
    for one in applied.of("google_service_account_iam_member"):
        found = re.search(r"\[(.+)/(.+)\]$", one.value["member"])
        account = one.value["service_account_id"].rpartition("/")[2]
        if found is None or known.get((found[1], found[2])) is None:
            yield f"{one.address}: {one.value['member']}: no such pod ({account})"
    subjects = [(one.address, one.value["subject"], one.value["audience"] == ["api://AzureADTokenExchange"])
                for one in applied.of("azurerm_federated_identity_credential")]  # fmt: skip
    for one in applied.of("aws_iam_role", "controller"):
        for statement in json.loads(one.value["assume_role_policy"])["Statement"]:
            equal = statement.get("Condition", {}).get("StringEquals", {})
            values = {key.rpartition(":")[2]: value for key, value in equal.items()}
            subjects.append((one.address, values.get("sub", ""), values.get("aud") == "sts.amazonaws.com"))
    for address, subject, has_audience in subjects:
        if not has_audience or tuple(subject.removeprefix(_POD).split(":")) not in known:
            yield f"{address}: {subject or 'every pod'}: is not the controller's pod, or has a different audience"


def tokens(applied: Applied) -> Iterator[str]:
    """Yield a controller that has no token where its SDKs look for it, and tokens that live for an hour."""
    for chart in applied.of("helm_release", "controller"):
        worker = yaml.safe_load(chart.value["values"][0])["worker"]
        tokens_ = {
            volume["name"]: volume["projected"]["sources"][0]["serviceAccountToken"]
            for volume in worker["extraVolumes"]
        }
        files = {str(PurePosixPath(mount["mountPath"]) / tokens_[mount["name"]]["path"]): tokens_[mount["name"]]["audience"]
                 for mount in worker["extraVolumeMounts"]}  # fmt: skip
        for variable in worker["extraEnvVars"]:
            audience = "sts.amazonaws.com" if variable["name"].startswith("AWS") else "api://AzureADTokenExchange"
            if variable["name"].endswith("TOKEN_FILE") and files.get(variable["value"]) != audience:
                yield f"{chart.address}: {variable['name']}: no token of {audience} is mounted at {variable['value']}"
    clients = {
        "kubernetes": applied.providers["kubernetes"],
        "helm": applied.providers["helm"]["kubernetes"][1],
    }  # by its type
    for name, client in clients.items():
        if client.get("token") or not client.get("exec"):
            yield f"provider {name}: its token lives for an hour, which an apply may exceed (hint: exec)"


def rights(applied: Applied) -> Iterator[str]:
    """Yield rights that worker and controller do not need."""
    for one in applied.of("aws_iam_role_policy"):
        allowed = _AWS_ACTIONS[one.address.rpartition(".")[2]]
        for statement in json.loads(one.value["policy"])["Statement"]:
            wide = set(_many(statement["Action"])) - allowed
            places = [place for place in _many(statement["Resource"]) if place == "*" or place.endswith(":::*")]
            if wide or (places and statement["Action"] != ["autoscaling:DescribeAutoScalingGroups"]):
                yield f"{one.address}: {statement.get('Sid')}: allows {sorted(wide) or statement['Action']} of {places or statement['Resource']}"
    for one in applied.of("aws_iam_role"):
        for statement in json.loads(one.value["assume_role_policy"])["Statement"]:
            if "*" in str(statement["Principal"]) or (
                statement.get("Condition") and "Service" in statement["Principal"]
            ):
                yield f"{one.address}: {statement['Principal']}: everybody takes this role, or the machine cannot"
    for one in applied.of("azurerm_role_definition"):
        permissions = one.value["permissions"][0]
        if wide := {*(permissions["actions"] or []), *(permissions["data_actions"] or [])} - _AZURE_ACTIONS:
            yield f"{one.address}: allows {sorted(wide)}"
    for one in applied.of("azurerm_role_assignment"):
        if one.value["role_definition_name"] not in _AZURE_ROLES and "made-" not in one.value["role_definition_name"]:
            yield f"{one.address}: {one.value['role_definition_name']}: is too wide"
        if not re.search("storage_container|key_vault|scale_set", one.value["scope"]):
            yield f"{one.address}: {one.value['scope']}: is too wide"
    for one in applied.of("google_project_iam_custom_role"):
        if wide := set(one.value["permissions"]) - _GOOGLE_ACTIONS:
            yield f"{one.address}: allows {sorted(wide)}"
    for one in applied.resources:
        role = one.value.get("role") if one.type.startswith("google_") and one.type.endswith("_iam_member") else None
        if role and not role.startswith("made-") and role not in _GOOGLE_ROLES:
            yield f"{one.address}: {role}: is too wide"


def ways_in(applied: Applied) -> Iterator[str]:
    """Yield ways into a machine or a node, and ways out that no worker needs."""
    for one in applied.resources:
        value = one.value
        rules = [rule for rule in value.get("security_rule") or [] if rule["direction"] == "Inbound"]
        if (
            one.type.endswith("ingress_rule")
            or value.get("ingress")
            or rules
            or one.type == "azurerm_network_security_rule"
        ):
            yield f"{one.address}: lets something in"
        if one.type == "google_compute_firewall" and value.get("direction") != "EGRESS":
            yield f"{one.address}: lets something in"
        if one.type.endswith("egress_rule") and (value["from_port"], value["to_port"]) != (443, 443):
            yield f"{one.address}: lets out more than HTTPS"
    for cluster in applied.of("google_container_cluster"):
        if not cluster.value["private_cluster_config"][0]["enable_private_nodes"]:
            yield f"{cluster.address}: its nodes have public addresses"
    for scale_set in applied.of("azurerm_linux_virtual_machine_scale_set"):
        address = scale_set.value["network_interface"][0]["ip_configuration"][0]["public_ip_address"][0]
        prefixes = [one.value["id"] for one in applied.of("azurerm_public_ip_prefix") if one.value["sku"] == "Standard"]
        if address["public_ip_prefix_id"] not in prefixes:
            yield f"{scale_set.address}: its addresses are of the Basic SKU, of which a subscription has none"
        if scale_set.value["admin_username"] in _TAKEN:
            yield f"{scale_set.address}: {scale_set.value['admin_username']}: is a name that the image has"
    for launch in applied.of("aws_launch_template"):
        if launch.value["metadata_options"][0]["http_tokens"] != "required":
            yield f"{launch.address}: its metadata server answers without a token"
    given = applied.values.get("addresses")
    for kind, block in (("azurerm_key_vault", "network_acls"), ("azurerm_storage_account", "network_rules")):
        for one in applied.of(kind):
            if given and not any(
                rule["default_action"] == "Deny" and set(given) < set(rule["ip_rules"]) for rule in one.value[block]
            ):
                yield f"{one.address}: {block}: answers others than {given} and the controller"


def sizes(applied: Applied) -> Iterator[str]:
    """Yield machines that are on without a training, that nothing stops, or that are not what was chosen."""
    hour = applied.values.get("off_hour", 6)
    for group in applied.of("aws_autoscaling_group"):
        if (group.value["min_size"], group.value["desired_capacity"]) != (0, 0) or group.value["max_size"] < 1:
            yield f"{group.address}: is not empty but for a round"
        stops = [
            one.value
            for one in applied.of("aws_autoscaling_schedule")
            if one.value["autoscaling_group_name"] == group.value["name"]
        ]
        if not any(
            stop["recurrence"] == f"0 {hour} * * *"
            and stop["time_zone"] == "Etc/UTC"
            and stop["desired_capacity"] == stop["min_size"] == 0
            for stop in stops
        ):
            yield f"{group.address}: is not stopped every day at {hour}:00 UTC"
    for scale_set in applied.of("azurerm_linux_virtual_machine_scale_set"):
        if scale_set.value["instances"] != 0 or scale_set.value["overprovision"] is not False:
            yield f"{scale_set.address}: starts machines that no round asked for"
        for scaling in applied.of("azurerm_monitor_autoscale_setting"):
            yield from _azure_stop(scaling, hour)
    for pool in applied.of("google_container_node_pool", "gpu"):
        scaling = pool.value["autoscaling"][0]
        if (
            scaling["total_min_node_count"] != 0
            or pool.value["initial_node_count"] != 0
            or not scaling["total_max_node_count"]
        ):
            yield f"{pool.address}: has nodes without a training"


def _azure_stop(scaling: Resource, hour: int) -> Iterator[str]:
    profiles = {profile["capacity"][0]["maximum"]: profile["recurrence"][0] for profile in scaling.value["profile"]}
    off, free = profiles.get(0), next((value for most, value in profiles.items() if most), None)
    if off is None or free is None or off["hours"] != [hour] or set(off["days"]) != _WEEK or set(free["days"]) != _WEEK:
        yield f"{scaling.address}: does not stop machines every day at {hour}:00 UTC"
    elif any(profile["capacity"][0]["minimum"] for profile in scaling.value["profile"]) or off["timezone"] != "UTC":
        yield f"{scaling.address}: keeps machines on"
    elif not 0 < free["hours"][0] * 60 + free["minutes"][0] - hour * 60 <= _LAST_MINUTE:
        yield f"{scaling.address}: allows no machine for longer than an hour"


def choices(applied: Applied) -> Iterator[str]:
    """Yield choices of `terraform.tfvars` that reach no machine."""
    aws, azure, gcp = (applied.values.get(cloud) or {} for cloud in ("aws", "azure", "gcp"))
    for one in applied.of("aws_launch_template"):
        market = [block["market_type"] for block in one.value["instance_market_options"] or []]
        kept = [
            item["capacity_reservation_id"]
            for block in one.value["capacity_reservation_specification"] or []
            for item in block["capacity_reservation_target"]
        ]
        yield from _differs(
            one,
            spot=(bool(market), aws.get("spot", False)),
            reservation=(kept, list(filter(None, [aws.get("reservation")]))),
        )
    for one in applied.of("azurerm_linux_virtual_machine_scale_set"):
        image = azure.get("image", "")
        yield from _differs(
            one, spot=(one.value["priority"] == "Spot", azure.get("spot", False)),
            reservation=(one.value["capacity_reservation_group_id"], azure.get("reservation")),
            image=(one.value["source_image_id"] or "", image if image.startswith("/") else ""),
            one_group=(one.value["single_placement_group"], not azure.get("reservation")),
        )  # fmt: skip
    for one in applied.of("google_container_node_pool", "gpu"):
        node = one.value["node_config"][0]
        kept = [value for block in node["reservation_affinity"] or [] for value in block["values"]]
        yield from _differs(
            one, spot=(node["spot"], gcp.get("spot", False)), compact=(bool(one.value["placement_policy"]), gcp.get("compact", False)),
            reservation=(kept, list(filter(None, [gcp.get("reservation")]))),
            zones=(one.value["node_locations"], applied.values["gcp_zones"][: 1 if gcp.get("compact") else None]),
        )  # fmt: skip


def _differs(one: Resource, **pairs: tuple[Any, Any]) -> Iterator[str]:
    for name, (has, wanted) in pairs.items():
        if has != wanted:
            yield f"{one.address}: {name}: is {has!r} instead of {wanted!r}"


def gpu(applied: Applied) -> Iterator[str]:
    """Yield pods that get no GPU, and nodes that no pod selects or whose driver CUDA 13 does not take."""
    for chart in applied.of("helm_release", "gpu"):
        template = _template(yaml.safe_load(chart.value["values"][0]))
        pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
        asked = [part.get("nvidia.com/gpu") for part in pod["containers"][0]["resources"].values()]
        defaults = {name: item.get("default") for name, item in template["variables"]["properties"].items()}
        if set(asked) != {"{{ gpus }}"} or not defaults["gpus"]:
            yield f"{chart.address}: its pods ask for no GPU"
        if defaults["service_account_name"] not in {name for _, name in _service_accounts(applied)}:
            yield f"{chart.address}: {defaults['service_account_name']}: no such service account"
        for pool in applied.of("google_container_node_pool", "gpu"):
            node = pool.value["node_config"][0]
            if node["labels"].get("nvidia.com/gpu.product") != defaults["gpu_product"]:
                yield f"{pool.address}: no pod selects its nodes: {node['labels']}, {defaults['gpu_product']}"
            device = node["guest_accelerator"][0]
            if not device["count"] or device["gpu_driver_installation_config"][0]["gpu_driver_version"] == "DEFAULT":
                yield f"{pool.address}: has no GPU, or the driver of a branch before 580"


def quota(applied: Applied) -> Iterator[str]:
    """Yield disks beyond a new project's quota of SSD, and what can be neither deleted nor made again."""
    gigabytes = 0
    for one in (*applied.of("google_container_cluster"), *applied.of("google_container_node_pool")):
        node = (one.value["node_config"] or [{}])[0]
        zones = len(one.value["node_locations"] or [1, 2, 3])
        count = (
            zones
            if one.type.endswith("cluster")
            else (one.value["autoscaling"] or [{"total_max_node_count": zones}])[0]["total_max_node_count"]
        )
        is_disk_of_its_own = isinstance(node.get("disk_size_gb"), int) and node["disk_size_gb"] > 1
        if node.get("disk_type") != "pd-standard":
            gigabytes += count * (node["disk_size_gb"] if is_disk_of_its_own else 100)
    if gigabytes > _SSD_GB:
        yield f"google: {gigabytes} GB of SSD are more than the {_SSD_GB} of a new project"
    for one in applied.resources:
        if one.type in _KEPT_BY_DESTROY:
            yield f"{one.address}: destroy does not delete it, and the next apply cannot make it"


def maintenance(applied: Applied) -> Iterator[str]:
    """Yield a cluster or a database that may be upgraded during a round."""
    hour = applied.values.get("off_hour", 6)
    for one in applied.of("google_container_cluster"):
        windows = [
            window for policy in one.value["maintenance_policy"] or [] for window in policy["daily_maintenance_window"]
        ]
        if not windows or not 0 < (int(windows[0]["start_time"][:2]) - hour) % 24 <= _WINDOW_HOURS:
            yield f"{one.address}: may be upgraded during a round"
    for one in applied.of("google_sql_database_instance"):
        windows = one.value["settings"][0]["maintenance_window"]
        if not windows or not 0 < (windows[0]["hour"] - hour) % 24 <= _WINDOW_HOURS:
            yield f"{one.address}: may be upgraded during a round"


def order(applied: Applied) -> Iterator[str]:
    """Yield resources that are made before, or go after, what they need."""
    needed = {
        "helm_release.server": ("google_container_node_pool.control", "google_compute_router_nat.this", "helm_release.balancer"),
        "time_sleep.balancer": ("google_compute_global_address.prefect", "google_compute_managed_ssl_certificate.prefect", "google_container_cluster.this"),
        "helm_release.controller": ("google_container_node_pool.control",),
        "azurerm_key_vault_secret.worker": ("time_sleep.vault_officer", "azurerm_role_assignment.vault_officer"),
        "google_service_account_iam_member.pod": ("google_container_cluster.this",),
    }  # fmt: skip
    made = {re.sub(r"\[.*?\]", "", one.address) for one in applied.resources}
    for one in applied.resources:
        for suffix, needs in needed.items():
            for need in needs:
                exists = any(address.endswith(need) for address in made)
                if (
                    re.sub(r"\[.*?\]", "", one.address).endswith(suffix)
                    and exists
                    and not any(each.endswith(need) for each in one.needs)
                ):
                    yield f"{one.address}: does not wait for {need}"
        if (
            one.type.startswith("google_")
            and one.type != "google_project_service"
            and not any("time_sleep.services" in each for each in one.needs)
        ):
            yield f"{one.address}: is created before its service answers"
    for one in applied.of("time_sleep"):
        if not (one.value["create_duration"] or (one.value["destroy_duration"] if "balancer" in one.address else None)):
            yield f"{one.address}: waits for nothing"


def services(applied: Applied) -> Iterator[str]:
    """Yield services of a new project or subscription that nothing enables."""
    enabled = {one.value["service"].partition(".")[0] for one in applied.of("google_project_service")}
    registered = set(applied.providers["azurerm"].get("resource_providers_to_register") or [])
    for type_ in sorted({one.type for one in applied.resources}):
        for start, needed in _GOOGLE_SERVICES.items():
            if type_.startswith(start) and needed - enabled:
                yield f"{type_}: {', '.join(sorted(needed - enabled))} is not enabled"
        for start, name in _AZURE_PROVIDERS.items():
            if type_.startswith(start) and f"Microsoft.{name}" not in registered:
                yield f"{type_}: Microsoft.{name} is not registered"


def stores(applied: Applied) -> Iterator[str]:
    """Yield stores that are public, unencrypted on the way, or without versions."""
    closed = {one.value["bucket"]: one.value for one in applied.of("aws_s3_bucket_public_access_block")}
    versions = {
        one.value["bucket"]
        for one in applied.of("aws_s3_bucket_versioning")
        if one.value["versioning_configuration"][0]["status"] == "Enabled"
    }
    policies = {one.value["bucket"]: one.value["policy"] for one in applied.of("aws_s3_bucket_policy")}
    for bucket in applied.of("aws_s3_bucket"):
        name = bucket.value["id"]
        keys = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
        statements = json.loads(policies.get(name, '{"Statement": []}'))["Statement"]
        if not all(closed.get(name, {}).get(key) for key in keys) or any(
            each["Effect"] != "Deny" for each in statements
        ):
            yield f"{bucket.address}: is public"
        if name not in versions or not any("SecureTransport" in str(each) for each in statements):
            yield f"{bucket.address}: has no versions, or takes unencrypted connections"
        if bucket.address.endswith('["outbox"]') and not any("s3:PutObject" in each["Action"] for each in statements):
            yield f"{bucket.address}: records can be replaced"
    for bucket in applied.of("google_storage_bucket"):
        is_closed = (
            bucket.value["public_access_prevention"] == "enforced" and bucket.value["uniform_bucket_level_access"]
        )
        if not is_closed or not bucket.value["versioning"][0]["enabled"]:
            yield f"{bucket.address}: is public, or has no versions"
    for account in applied.of("azurerm_storage_account"):
        if (
            account.value["allow_nested_items_to_be_public"] is not False
            or not account.value["https_traffic_only_enabled"]
        ):
            yield f"{account.address}: is public, or takes unencrypted connections"


def teardown(applied: Applied) -> Iterator[str]:
    """Yield resources on which `destroy` ends, or that it deletes although they are protected."""
    is_protected = applied.values.get("deletion_protection", True)
    for one in applied.resources:
        if one.type in _POLICIES and one.value["deletion_policy"] != _POLICIES[one.type]:
            yield f"{one.address}: deletion_policy: is not {_POLICIES[one.type]}"
        if (
            one.type in ("google_container_cluster", "google_sql_database_instance")
            and one.value["deletion_protection"] != is_protected
        ):
            yield f"{one.address}: deletion_protection: is not {is_protected}"
        if one.type in ("google_storage_bucket", "aws_s3_bucket") and one.value["force_destroy"] == is_protected:
            yield f"{one.address}: force_destroy: is {is_protected}"


def server(applied: Applied) -> Iterator[str]:
    """Yield pods that keep an old password, and charts of which Prefect cannot be reached."""
    for chart in applied.of("helm_release"):
        values = yaml.safe_load(chart.value["values"][0]) if chart.value["values"] else {}
        if not values:
            continue
        part = values.get("server", values.get("worker"))
        if not re.fullmatch("[0-9a-f]{64}", part["podAnnotations"].get("checksum/secret", "")):
            yield f"{chart.address}: a changed secret restarts no pod"
        if "ingress" in values and "prefect-server" not in values["service"]["annotations"].get(
            "cloud.google.com/backend-config", ""
        ):
            yield f"{chart.address}: the balancer ends each connection after 30 seconds"
        if "worker" in values:
            names = {variable["name"]: variable for variable in part["extraEnvVars"]}
            key = names.get("PREFECT_API_AUTH_STRING") or names.get("PREFECT_API_KEY") or {}
            if (
                key.get("valueFrom", {}).get("secretKeyRef", {}).get("key") != "auth-string"
                or not part["selfHostedServerApiConfig"]["apiUrl"]
            ):
                yield f"{chart.address}: has no password of the Prefect API"


def suite(applied: Applied) -> Iterator[str]:
    """Yield a suite that names stores and machines which were not made."""
    made = {one.value.get("name") for one in applied.resources} | {one.value.get("bucket") for one in applied.resources}
    found = applied.outputs["suite"]
    for where, url in [
        ("store", found["store"]),
        *((name, platform[key]) for name, platform in found["platforms"].items() for key in ("data", "outbox")),
    ]:
        if url.split("/")[2] not in made:
            yield f"{where}: {url}: was not made"
    for name, platform in found["platforms"].items():
        if platform.get("machines") and platform["machines"].rpartition("/")[2] not in made:
            yield f"{name}: {platform['machines']}: was not made"
    if not found["platforms"]:
        yield "platforms: there is none"


ROWS: tuple[Row, ...] = (
    first_start, images, pods, tokens, rights, ways_in, sizes, choices, gpu, quota, maintenance, order, services, stores,
    teardown, server, suite,
)  # fmt: skip


def check_resolved(applied: Applied) -> Iterator[str]:
    """Yield the findings of each row, with its name."""
    for row in ROWS:
        try:
            yield from [f"{row.__name__}: {finding}" for finding in row(applied)]
        except (LookupError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
            yield f"{row.__name__}: cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"


def first_files(applied: Applied) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Yield what each cloud's machines get at their first start: all of it, and the files by their paths."""
    for _, data in _user_data(applied):
        yield base64.b64decode(data), _files(data)


def _user_data(applied: Applied) -> Iterator[tuple[str, str]]:
    for type_, key in (
        ("aws_launch_template", "user_data"),
        ("azurerm_linux_virtual_machine_scale_set", "custom_data"),
    ):
        for one in applied.of(type_):
            yield f"{one.address}: {key}", one.value[key]


def _files(data: str) -> dict[str, str]:
    """Return the files that cloud-init writes, by their paths."""
    files = yaml.safe_load(base64.b64decode(data))["write_files"]
    return {
        file["path"]: base64.b64decode(file["content"]).decode() if file.get("encoding") == "b64" else file["content"]
        for file in files
    }


def _template(values: dict[str, Any]) -> dict[str, Any]:
    """Return the base job template, which the chart takes as a string of JSON."""
    template = json.loads(values["worker"]["config"]["baseJobTemplate"]["configuration"])
    assert isinstance(template, dict)
    return template


def _service_accounts(applied: Applied) -> dict[tuple[str, str], str]:
    """Return the pods' service accounts by namespace and name, with Google's account of each, empty without one."""
    known = {}
    for one in applied.of("kubernetes_service_account_v1"):
        meta = one.value["metadata"][0]
        known[meta["namespace"], meta["name"]] = (meta["annotations"] or {}).get("iam.gke.io/gcp-service-account", "")
    for chart in applied.of("helm_release"):
        account = (yaml.safe_load(chart.value["values"][0]) if chart.value["values"] else {}).get("serviceAccount", {})
        if account.get("name"):
            annotation = account.get("annotations", {}).get("iam.gke.io/gcp-service-account", "")
            known[chart.value["namespace"], account["name"]] = annotation
    return known


def _many(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
