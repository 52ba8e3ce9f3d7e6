"""Check of what a cloud does that no schema says: a function for each row of `infra/CLOUDS.md`, named as the row.

Each was an error of the first apply, of the first night or of `destroy`, in files that every schema accepts.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from modules import Module, read_modules

_GOOGLE_SERVICES = {
    "google_artifact_registry": {"artifactregistry"}, "google_cloud_quotas": {"cloudquotas"},
    "google_compute": {"compute"}, "google_container": {"container", "iamcredentials"},
    "google_project_iam": {"cloudresourcemanager", "iam"}, "google_service_account": {"iam"},
    "google_service_networking": {"servicenetworking"}, "google_sql": {"sqladmin"}, "google_storage": {"storage"},
}  # fmt: skip
_AZURE_PROVIDERS = {
    "azurerm_linux_virtual_machine": "Compute", "azurerm_monitor": "Insights", "azurerm_key_vault": "KeyVault",
    "azurerm_user_assigned_identity": "ManagedIdentity", "azurerm_virtual_network": "Network",
    "azurerm_storage": "Storage",
}  # fmt: skip
# Users and groups of Ubuntu's base-passwd, and names that Azure refuses.
_TAKEN = frozenset(
    """root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc nobody adm tty disk dialout
    fax voice cdrom floppy tape sudo audio dip operator src shadow utmp video sasl plugdev staff users nogroup admin
    administrator user guest test console support""".split()  # noqa: SIM905 - names in quotes would be a page
)
_WEBSOCKET_SECONDS = 3600
_TUTORIAL = "../docs/tutorials/clouds.md"
_LEFT = {
    "aws_autoscaling_group": "AWSServiceRoleForAutoScaling", "aws_servicequotas_service_quota": "raised quotas",
    "azurerm_key_vault": "key vault", "azurerm_virtual_network": "NetworkWatcherRG", "docker_image": "own Docker",
    "google_project_iam_custom_role": "custom roles", "google_project_service": "enabled services",
    "google_service_networking_connection": "database's network", "google_sql_database_instance": "database's name",
}  # fmt: skip
"""What `destroy` leaves, by the type of resource that makes it, in words of the tutorial."""


class Tree(NamedTuple):
    """The files that the rows read."""

    root: Path
    modules: dict[str, Module]

    def text(self, name: str) -> str:
        """Return a file's text; an absent file is empty."""
        path = self.root / "infra" / name
        return path.read_text("utf-8") if path.is_file() else ""

    def bodies(self, module: str, kind: str, *, of: str = "resource") -> list[dict[str, Any]]:
        """Return the resources of a type."""
        return [body for (type_, _), body in self.modules[module].objects(of).items() if type_ == kind]

    def types(self, module: str) -> set[str]:
        """Return the types of a module's resources and data sources."""
        return {type_ for kind in ("resource", "data") for type_, _ in self.modules[module].objects(kind)}


Row = Callable[[Tree], Iterator[str]]


def library_path(tree: Tree) -> Iterator[str]:
    """Yield a worker's image or unit that does not look for the driver where Google's nodes mount it."""
    for name in ("worker/Dockerfile", "systemd/plumbline-worker.service"):
        if "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" not in tree.text(name):
            yield f"infra/{name}: LD_LIBRARY_PATH lacks /usr/local/nvidia/lib64"


def one_python(tree: Tree) -> Iterator[str]:
    """Yield the Pythons of images and machines if they are several."""
    found = {f"infra/{name}": re.findall(r"python:(3\.\d+)-", tree.text(name)) for name in (
        "worker/Dockerfile", "controller/Dockerfile", "control/images.tf", "README.md")}  # fmt: skip
    for name in ("control/server.yaml", "control/gpu.yaml"):
        found[f"infra/{name}"] = re.findall(r"-python(3\.\d+)", tree.text(name))
    table = tomllib.loads((tree.root / "plumbline/schema/machines.toml").read_text("utf-8"))
    found["machines.toml"] = [machine["python"] for machine in table["machines"]]
    if len({version for versions in found.values() for version in versions}) != 1:
        yield "; ".join(f"{name}: Python {', '.join(sorted(set(versions)))}" for name, versions in found.items())


def source(tree: Tree) -> Iterator[str]:
    """Yield images that contain a working tree instead of the repository's tag."""
    for image in tree.bodies("control", "docker_image"):
        if "source=${var.repository}#${var.tag}" not in json.dumps(image):
            yield "infra/control: docker_image: is built of the working tree"
    for name in ("worker/Dockerfile", "controller/Dockerfile"):
        copies = re.findall(r"^COPY (?!\. /)(\S+)", tree.text(name), re.MULTILINE)
        if set(copies) != {"--from=source"}:
            yield f"infra/{name}: copies of the build context instead of `source`"


def address(tree: Tree) -> Iterator[str]:
    """Yield addresses of Azure's machines that would be of the Basic SKU."""
    standard = [body for body in tree.bodies("azure", "azurerm_public_ip_prefix") if _text(body["sku"]) == "Standard"]
    for machines in tree.bodies("azure", "azurerm_linux_virtual_machine_scale_set"):
        for block in _blocks(machines, "public_ip_address"):
            if not standard or "azurerm_public_ip_prefix" not in str(block.get("public_ip_prefix_id")):
                yield "infra/azure: public_ip_address: has no Standard SKU (hint: public_ip_prefix_id)"


def user(tree: Tree) -> Iterator[str]:
    """Yield administrators whose name Ubuntu or Azure has already."""
    text = "".join(path.read_text("utf-8") for path in sorted((tree.root / "infra/azure").glob("*.tf")))
    for name in re.findall(r'^\s*(?:admin_username|username|admin)\s+= "([^"]+)"', text, re.MULTILINE):
        if name in _TAKEN:
            yield f"infra/azure: admin_username: {name} is taken"


def quota(tree: Tree) -> Iterator[str]:
    """Yield requests for a quota that do not look at the present one."""
    for module, kind, present in (
        ("aws", "aws_servicequotas_service_quota", "data.aws_servicequotas_service_quota"),
        ("gcp", "google_cloud_quotas_quota_preference", "present_quota"),
    ):
        for body in tree.bodies(module, kind):
            asked = json.dumps([body.get("value"), body.get("quota_config")])
            if not re.search(rf"max\(.*{re.escape(present)}", asked):
                yield f"infra/{module}: {kind}: may ask for less than the present quota"


def zones(tree: Tree) -> Iterator[str]:
    """Yield GPU machines in zones that may not have them."""
    for pool in tree.bodies("gcp", "google_container_node_pool"):
        if _blocks(pool, "guest_accelerator") and "var." not in str(pool.get("node_locations")):
            yield "infra/gcp: node_locations: names no zones of the GPU"
    if "default" in tree.modules["gcp"].named("variable").get("gpu_zones", {"default": None}):
        yield "infra/gcp: gpu_zones: may be left out"
    for subnet in tree.bodies("aws", "aws_subnet"):
        if "data.aws_ec2_instance_type_offerings." not in str(subnet["availability_zone"]):
            yield "infra/aws: aws_subnet: is in zones without the machine"


def driver(tree: Tree) -> Iterator[str]:
    """Yield a choice of Google's driver that may be older than CUDA 13 needs."""
    variable = tree.modules["gcp"].named("variable")["driver"]
    if (
        _text(variable["default"]) == "DEFAULT"
        or not variable.get("validation")
        or "DEFAULT" in str(variable["validation"])
    ):
        yield "infra/gcp: driver: DEFAULT is of a branch before 580"


def placement(tree: Tree) -> Iterator[str]:
    """Yield machines of one training that may stand far from each other."""
    (pool,) = [pool for pool in tree.bodies("gcp", "google_container_node_pool") if _blocks(pool, "guest_accelerator")]
    if '"placement_policy"' not in str(pool.get("dynamic")):
        yield "infra/gcp: placement_policy: machines of one training are anywhere in a zone"
    for group in tree.bodies("aws", "aws_autoscaling_group"):
        if "aws_placement_group." not in str(group.get("placement_group")):
            yield "infra/aws: placement_group: machines of one training are in several zones"
    for machines in tree.bodies("azure", "azurerm_linux_virtual_machine_scale_set"):
        if machines.get("single_placement_group") in (None, False):
            yield "infra/azure: single_placement_group: machines of one training are in several groups"


def propagation(tree: Tree) -> Iterator[str]:
    """Yield uses of a right or of a service right after it was given."""
    for secret in tree.bodies("azure", "azurerm_key_vault_secret"):
        if "time_sleep." not in str(secret.get("depends_on")):
            yield "infra/azure: azurerm_key_vault_secret: is written before its role is known (hint: time_sleep)"
    for (type_, label), body in tree.modules["gcp"].objects("resource").items():
        if "google_project_service." in str(body.get("depends_on")):
            yield f"infra/gcp: {type_}.{label}: is created before its service answers (hint: time_sleep)"


def services(tree: Tree) -> Iterator[str]:
    """Yield services of a new project or subscription that nothing enables."""
    enabled = set(
        re.findall(r'"(\w+)"', str([one["for_each"] for one in tree.bodies("gcp", "google_project_service")]))
    )
    for type_ in sorted(tree.types("gcp")):
        for start, needed in _GOOGLE_SERVICES.items():
            if type_.startswith(start) and needed - enabled:
                yield f"infra/gcp: {type_}: {', '.join(sorted(needed - enabled))} is not enabled"
    if "gcloud services enable cloudresourcemanager.googleapis.com" not in tree.text(_TUTORIAL):
        yield "docs/tutorials/clouds.md: Google's provider needs cloudresourcemanager before it can enable a service"
    registered = str(tree.modules["three-clouds"].named("provider")["azurerm"].get("resource_providers_to_register"))
    for start, name in _AZURE_PROVIDERS.items():
        if any(type_.startswith(start) for type_ in tree.types("azure")) and f"Microsoft.{name}" not in registered:
            yield f"infra/three-clouds: azurerm: Microsoft.{name} is not registered"


def teardown(tree: Tree) -> Iterator[str]:
    """Yield resources on which `destroy` ends, or that keep the network."""
    for kind, policy in (
        ("google_service_networking_connection", "REMOVE_PEERING"),
        ("google_sql_user", "ABANDON"), ("google_sql_database", "ABANDON"),
    ):  # fmt: skip
        for body in tree.bodies("gcp", kind):
            if _text(body.get("deletion_policy", "")) != policy:
                yield f"infra/gcp: {kind}: deletion_policy: is not {policy}"
    if not any("destroy_duration" in body for body in tree.bodies("control", "time_sleep")):
        yield "infra/control: the cluster goes before its balancer (hint: time_sleep.destroy_duration)"
    for module, kind, key in (
        ("gcp", "google_sql_database_instance", "deletion_protection"),
        ("gcp", "google_container_cluster", "deletion_protection"),
        ("gcp", "google_storage_bucket", "force_destroy"), ("aws", "aws_s3_bucket", "force_destroy"),
    ):  # fmt: skip
        for body in tree.bodies(module, kind):
            if "var.deletion_protection" not in str(body.get(key)):
                yield f"infra/{module}: {kind}: {key}: is not a variable"
    left = tree.text(_TUTORIAL).partition("It leaves: ")[2]
    made = set[str]().union(*map(tree.types, tree.modules))
    for kind in sorted(kind for kind, words in _LEFT.items() if kind in made and words not in left):
        yield f"docs/tutorials/clouds.md: {kind}: {_LEFT[kind]}: is not among what `destroy` leaves"


def hours(tree: Tree) -> Iterator[str]:
    """Yield an hour of the clock that may be 24."""
    if re.search(r"var\.off_hour \+ 1(?!\) % 24)", tree.text("azure/machines.tf")):
        yield "infra/azure: off_hour: 23 gives hour 24"
    for module in ("aws", "azure"):
        if not tree.modules[module].named("variable")["off_hour"].get("validation"):
            yield f"infra/{module}: off_hour: takes every number"


def balancer(tree: Tree) -> Iterator[str]:
    """Yield a server whose websockets Google's balancer ends after 30 seconds."""
    timeout = re.search(r"timeoutSec: (\d+)", tree.text("control/balancer/templates/backend.yaml"))
    if (
        timeout is None
        or int(timeout[1]) < _WEBSOCKET_SECONDS
        or "cloud.google.com/backend-config" not in tree.text("control/server.yaml")
    ):
        yield "infra/control: server.yaml: websockets end after 30 seconds (hint: BackendConfig)"


def rotation(tree: Tree) -> Iterator[str]:
    """Yield pods that keep an old password."""
    for name in ("server", "controller", "gpu"):
        if "checksum/secret: ${checksum}" not in tree.text(f"control/{name}.yaml"):
            yield f"infra/control: {name}.yaml: podAnnotations: a changed Secret restarts no pod"


def choices(tree: Tree) -> Iterator[str]:
    """Yield a team's choices that are not keys of `terraform.tfvars`."""
    variables = tree.modules["three-clouds"].named("variable")
    common = {"machine_type", "accelerator", "max_machines", "spot", "reservation"}
    for cloud, own in (
        ("aws", {"image", "vcpu_quota", "compact"}),
        ("azure", {"image"}),
        ("gcp", {"accelerator_type", "driver", "compact"}),
    ):
        given = set(re.findall(r"(\w+) = optional", str(variables.get(cloud, {}).get("type"))))
        call = tree.modules["three-clouds"].named("module")[cloud]
        for name in sorted((common | own) - (given & call.keys())):
            yield f"infra/three-clouds: {cloud}: {name} is not a key"


def installation(tree: Tree) -> Iterator[str]:
    """Yield machines that cannot be started from an image of the account, and so install everything each night."""
    for image in tree.bodies("aws", "aws_ami", of="data"):
        if "self" not in str(image["owners"]):
            yield "infra/aws: aws_ami: owners: excludes the account's own images"
    for machines in tree.bodies("azure", "azurerm_linux_virtual_machine_scale_set"):
        if "var.image" not in str(machines.get("source_image_id")):
            yield "infra/azure: source_image_id: excludes the subscription's own images"


def network(tree: Tree) -> Iterator[str]:
    """Yield machines in a network that an account may not have, and nodes with addresses of their own."""
    for body in tree.bodies("aws", "aws_vpc", of="data"):
        if body.get("default"):
            yield "infra/aws: aws_vpc: needs the account's default network"
    for cluster in tree.bodies("gcp", "google_container_cluster"):
        if not any(block.get("enable_private_nodes") is True for block in _blocks(cluster, "private_cluster_config")):
            yield "infra/gcp: google_container_cluster: nodes have public addresses"
    for kind, block in (("azurerm_key_vault", "network_acls"), ("azurerm_storage_account", "network_rules")):
        for body in tree.bodies("azure", kind):
            if f'"{block}"' not in str(body.get("dynamic")):
                yield f"infra/azure: {kind}: {block}: nothing restricts who reaches it"


def encryption(tree: Tree) -> Iterator[str]:
    """Yield buckets of AWS without a policy that refuses unencrypted connections."""
    covered = " ".join(str(body.get("for_each", body["bucket"])) for body in tree.bodies("aws", "aws_s3_bucket_policy"))
    for name in re.findall(r'"(\w+)"', str(tree.modules["aws"].blocks["locals"][-1].get("stores", ""))) or ["?"]:
        if f'"{name}"' not in covered and "setsubtract(local.stores" not in covered:
            yield f"infra/aws: {name}: takes unencrypted connections"
    for path in sorted((tree.root / "infra/aws").glob("*bucket-policy.json")):
        if "aws:SecureTransport" not in path.read_text("utf-8"):
            yield f"infra/aws: {path.name}: takes unencrypted connections"


def rights(tree: Tree) -> Iterator[str]:
    """Yield rights of Azure's worker that the controller gains, as it may change what the machines run."""
    granted: dict[str, set[str]] = {"worker": set(), "controller": set()}
    for body in tree.bodies("azure", "azurerm_role_assignment"):
        who = re.search(r'this\["(\w+)"\]', str(body["principal_id"]))
        scope = re.search(r'store\["?([\w.]+)"?\]|azurerm_(key_vault)', str(body["scope"]))
        if who is not None and scope is not None:
            place = scope[1] or scope[2]
            granted[who[1]] |= {"data", "outbox", "central"} if place == "each.key" else {place}
    # The password of the API, which the vault contains, is in the controller's own Secret.
    for store in sorted(granted["worker"] - granted["controller"] - {"key_vault"}):
        yield f"infra/azure: worker: {store}: the controller gains it by virtualMachineScaleSets/write"


def state(tree: Tree) -> Iterator[str]:
    """Yield a state, which contains passwords, on the disk of who applies."""
    if not any("backend" in block for block in tree.modules["three-clouds"].blocks["terraform"]):
        yield "infra/three-clouds: terraform: no backend keeps the state"


ROWS: tuple[Row, ...] = (
    library_path, one_python, source, address, user, quota, zones, driver, placement, propagation, services, teardown,
    hours, balancer, rotation, choices, installation, network, encryption, rights, state,
)  # fmt: skip


def check_clouds(root: Path) -> Iterator[str]:
    """Yield the findings of each row, with its name."""
    tree = Tree(root, read_modules(root)[0])
    for row in ROWS:
        for finding in row(tree):
            yield f"{row.__name__}: {finding}"


def _text(value: Any) -> str:
    return str(value).strip('"')


def _blocks(part: Any, name: str) -> list[dict[str, Any]]:
    """Return the blocks of a name at any depth."""
    if isinstance(part, list):
        return [block for item in part for block in _blocks(item, name)]
    if not isinstance(part, dict):
        return []
    own = part.get(name, [])
    return [
        *(own if isinstance(own, list) else []),
        *(block for item in part.values() for block in _blocks(item, name)),
    ]
