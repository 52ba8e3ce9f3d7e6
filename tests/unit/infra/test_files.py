"""Infrastructure files: valid, consistent, and with minimal permissions."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from plumbline.cli.main import build_parser
from plumbline.cli.new_suite import NewPlatform
from plumbline.doctor import examine_recipients
from plumbline.doctor.place import cuda_of_torch, least_driver
from plumbline.flows.commands import doctor, upgrade
from plumbline.schema.suite import read_suite
from tests.shipped import PARAMETER, aws_policy, azure_actions, document, google_grants, resources

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"
POD_KEYS = {
    "containers", "nodeSelector", "restartPolicy", "securityContext", "serviceAccountName", "tolerations", "volumes",
    "terminationGracePeriodSeconds", "subdomain",
}  # fmt: skip
JOB_KEYS = {
    "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "template", "completionMode", "completions",
    "parallelism",
}  # fmt: skip


def requirements(name):
    """Return a lock file's requirements by name, without hashes."""
    lines = (ROOT / "locks" / f"{name}.txt").read_text().splitlines()
    wanted = [Requirement(line.removesuffix("\\")) for line in lines if line[:1].isalnum()]
    return {canonicalize_name(item.name): item for item in wanted}


def pins(name):
    return {key: str(item.specifier).removeprefix("==") for key, item in requirements(name).items()}


def required(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"][extra]
    return {re.match(r"[a-zA-Z0-9_.-]+", line)[0].lower() for line in wanted}


@pytest.mark.parametrize(("extra", "without"), [("trainer", "prefect"), ("controller", "torch")])
def test_the_small_lock_files_are_cut_from_the_large_one(extra, without):
    everything, own = pins("all"), pins(extra)
    assert {name: version for name, version in own.items() if everything.get(name) != version} == {}
    assert required(extra) <= own.keys()
    assert without not in own
    assert not any("+" in version for version in own.values())


def instructions(path):
    """Return a Dockerfile's instructions, joined and without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("name", ["worker", "controller"])
def test_an_image_has_no_base_but_one_of_a_given_digest(name):
    """A tag names a different image tomorrow: without a digest the build ends, as the argument has no default."""
    result = instructions(INFRA / name / "Dockerfile")
    images = [rest.split() for word, rest in result if word == "FROM"]
    stages = {words[2] for words in images if words[1:2] == ["AS"]}
    bases = {words[0] for words in images} - stages
    assert bases == {"python:3.11-slim-bookworm@${BASE_DIGEST}"}
    assert [rest for word, rest in result if word == "ARG" and rest.startswith("BASE_DIGEST")] == ["BASE_DIGEST"]
    # The first line may name an image too: that of the build's own program.
    assert "syntax=" not in (INFRA / name / "Dockerfile").read_text()


@pytest.mark.parametrize("path", ["worker/Dockerfile", "controller/Dockerfile", "cloud-init/worker.yaml", "README.md"])
def test_a_machine_builds_the_package_by_the_locked_setuptools(path):
    """An isolated build downloads setuptools by its version, and runs it, without a hash."""
    text = (INFRA / path).read_text()
    builds = [line for line in text.splitlines() if "--no-deps" in line and "--require-hashes" not in line]
    assert builds
    assert all("--no-build-isolation" in line for line in builds), builds


@pytest.mark.parametrize("name", ["worker", "controller"])
def test_dockerfiles_copy_what_exists_and_run_as_nobody_in_particular(name):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    result = instructions(INFRA / name / "Dockerfile")
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in result} <= known
    assert [rest for word, rest in result if word == "USER"][-1] == "plumbline"
    for word, rest in result:
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in allowed
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
    installs = [rest for word, rest in result if word == "RUN" and "pip install" in rest]
    assert all("-r locks/" in rest or "--no-deps" in rest for rest in installs)
    # The package is built by the locked setuptools: the trainer's lock has it, for torch; the controller's has not.
    pinned = f"setuptools=={pins('all')['setuptools']}"
    assert any(pinned in rest for rest in installs) or "setuptools" in pins(
        "trainer-cuda" if name == "worker" else name
    )
    assert "pip install setuptools " not in " ".join(installs)


def test_the_trainer_s_image_takes_the_trainer_s_lock_alone():
    result = instructions(INFRA / "worker" / "Dockerfile")
    second = [index for index, (word, _) in enumerate(result) if word == "FROM"][1]
    assert result[second][1] == "trainer AS worker"
    text = " ".join(rest for _, rest in result[:second])
    assert "locks/trainer-cuda.txt" in text
    assert "locks/controller.txt" not in text


@pytest.mark.parametrize("name", ["worker/Dockerfile", "controller/Dockerfile", "cloud-init/worker.yaml", "README.md"])
def test_machines_of_a_cloud_install_by_hash_alone(name):
    text = (INFRA / name).read_text()
    installs = re.findall(r"^.*-r (?:\S*/)?locks/.*$", text, re.MULTILINE)
    assert installs
    assert all("--require-hashes" in line and line.count("-r ") == 1 for line in installs), installs
    assert not re.search(r"locks/(all|trainer)\.txt", text)


def test_the_lock_of_a_record_is_the_one_that_was_installed():
    for name in ("worker/Dockerfile", "systemd/plumbline-worker.service"):
        text = (INFRA / name).read_text()
        assert re.findall(r"PLUMBLINE_LOCK=\S*/(\S+)", text) == ["trainer-cuda.txt"], name


@pytest.mark.parametrize("name", ["controller", "trainer-cuda"])
def test_locks_of_machines_have_a_hash_for_every_package(name):
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    blocks = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert {re.split(r"[\[=]", block)[0] for block in blocks} == requirements(name).keys()
    for block in blocks:
        assert re.match(r"[a-z0-9-]+(\[[a-z0-9, ]+])?==\S+ .*\\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+$", block), (
            block[:200]
        )


def test_the_gpu_lock_pins_cuda_and_states_the_driver_that_it_needs():
    everything, trainer, cuda = pins("all"), pins("trainer"), pins("trainer-cuda")
    assert {name: everything[name] for name in trainer} == {name: cuda.get(name) for name in trainer}
    nvidia = {name for name in cuda if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"}
    assert set(cuda) - set(trainer) == {*nvidia, "triton"}
    assert len(nvidia) >= 15
    linux = {"sys_platform": "linux", "platform_machine": "x86_64"}
    laptop = {"sys_platform": "darwin", "platform_machine": "arm64"}
    for requirement in requirements("trainer-cuda").values():
        assert requirement.marker.evaluate(linux)
        assert not requirement.marker.evaluate(laptop)
    runtime = cuda["nvidia-cuda-runtime"]
    second = (ROOT / "locks" / "trainer-cuda.txt").read_text().splitlines()[1]
    assert f"CUDA {runtime} needs the NVIDIA driver {least_driver(runtime)} or newer" in second


@pytest.mark.parametrize(
    ("chosen", "is_cpu"),
    [
        ([{"metadata": {"version": "2.13.0+cpu", "requires_dist": ["filelock", "sympy"]}}], True),
        ([{"metadata": {"version": "2.13.0", "requires_dist": ["nvidia-nccl-cu13==2.29.7; sys_platform"]}}], False),
        ([{"metadata": {"version": "2.13.0", "requires_dist": ["cuda-toolkit[cudart]==13.0.3"]}}], False),
        ([], not cuda_of_torch()),  # nothing to install: what is installed counts
        (None, False),
    ],
)
def test_the_build_of_torch_that_pip_would_take_is_recognised(chosen, is_cpu):
    result = runpy.run_path(str(INFRA / "install_torch.py"))["is_cpu_build"]
    assert result({} if chosen is None else {"install": chosen}) is is_cpu


def test_where_no_cpu_build_is_to_be_had_the_environment_is_not_called_one_of_the_cpu(tmp_path):
    # An environment without pip: neither the package index nor PyTorch's own answers.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True, timeout=60)
    command = [str(tmp_path / "bin" / "python"), str(INFRA / "install_torch.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "torch-build").read_text() == "index\n"


def test_cloud_init_is_what_cloud_init_reads():
    text = (INFRA / "cloud-init" / "worker.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    content = yaml.safe_load(text)
    assert set(content) == {"package_update", "packages", "users", "write_files", "runcmd"}
    files = {entry["path"]: entry for entry in content["write_files"]}
    assert files["/etc/plumbline/worker.env"]["permissions"] == "0600"
    script = files["/etc/plumbline/install"]["content"]
    assert content["runcmd"][0][0] == "/etc/plumbline/install"
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=20, check=False).returncode == 0
    for path in re.findall(r"(?:locks|infra)/[\w./-]+", script):
        assert (ROOT / path).exists(), path
    assert "secret" not in files["/etc/plumbline/worker.env"]["content"].lower()


def test_what_the_cloud_files_name_on_the_machine_is_put_there():
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    written = {entry["path"] for entry in content["write_files"]}
    for path in [INFRA / "cloud-init" / "worker.yaml", *INFRA.glob("systemd/*"), *INFRA.glob("*/README.md")]:
        assert set(re.findall(r"/etc/plumbline/[\w.-]*\w", path.read_text())) <= written, path


PYTHON = """#!/bin/sh
# Stands for an image's own python3: this one, under another version.
[ "$1" = --version ] && { echo "Python VERSION"; exit; }
exec REAL -c "import sys; sys.version_info = tuple(map(int, 'VERSION'.split('.'))); exec(sys.argv[1])" "$2"
"""


@pytest.mark.parametrize(("version", "words"), [("3.10.12", "3.11 or newer"), ("3.11.0", None), ("3.12.3", None)])
def test_the_machine_s_python_is_looked_at_before_anything_is_installed(tmp_path, version, words):
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    script = next(entry["content"] for entry in content["write_files"] if entry["path"] == "/etc/plumbline/install")
    python = PYTHON.replace("VERSION", version).replace("REAL", shlex.quote(sys.executable))
    # The first thing that it would change ends it: nothing else of this machine is on its path.
    for name, text in {"python3": python, "install": "#!/bin/sh\necho reached >&2\nexit 7\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", "REPOSITORY", "TAG"], input=script, env={"PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if words is None:
        assert (done.returncode, done.stderr) == (7, "reached\n")
    else:
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert words in line
        assert version in line


@pytest.mark.parametrize(
    ("driver", "words"), [("570.211.01", "this image has 570.211.01"), ("", "has none"), ("580.65.06", None)]
)
def test_the_machine_s_driver_is_looked_at_before_anything_is_installed(tmp_path, driver, words):
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    script = next(entry["content"] for entry in content["write_files"] if entry["path"] == "/etc/plumbline/install")
    script = script.replace("/opt/plumbline", str(tmp_path))
    (tmp_path / "src" / ".git").mkdir(parents=True)
    (tmp_path / "src" / "locks").symlink_to(ROOT / "locks")
    (tmp_path / "bin").mkdir()
    programs = {
        "install": "",
        "git": "",
        "nvidia-smi": f"echo {driver}",
        "python3": '[ "$2" = venv ] || exit 0\nexit 7',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", "REPOSITORY", "TAG"], input=script, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # The environment is made only for a driver that trains.
    assert done.returncode == (7 if words is None else 1), done.stderr
    assert (words or "") in done.stderr


VENV_PYTHON = """#!/bin/sh
# Stands for the environment's python: packages install, and torch sees the GPU or not.
[ "$1" = -c ] && [ -n "$(echo "$2" | grep torch)" ] && exit SEEN
exit 0
"""


@pytest.mark.parametrize(("code", "starts"), [(0, True), (1, False)])
def test_a_machine_whose_torch_sees_no_gpu_starts_no_worker_although_nvidia_smi_answers(tmp_path, code, starts):
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    files = {entry["path"]: entry["content"] for entry in content["write_files"]}
    script = files["/etc/plumbline/install"].replace("${password_command}", "echo user:password")
    script = script.replace("/opt/plumbline", str(tmp_path)).replace("/etc/plumbline", str(tmp_path))
    (tmp_path / "worker.env").write_text(files["/etc/plumbline/worker.env"])
    for folder in ("bin", "src/.git", "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("locks", "infra"):
        (tmp_path / "src" / folder).symlink_to(ROOT / folder)
    (tmp_path / "venv/bin/python").write_text(VENV_PYTHON.replace("SEEN", str(code)))
    programs = {"install": "", "git": "", "python3": "", "nvidia-smi": "echo 580.65.06"}
    programs["systemctl"] = f"echo $1 >> {tmp_path}/said"
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    for path in [*(tmp_path / "bin").iterdir(), tmp_path / "venv/bin/python"]:
        path.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", "REPOSITORY", "TAG"], input=script, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("torch sees no GPU" in done.stderr) is not starts
    assert ("restart" in (tmp_path / "said").read_text()) is starts
    # The password is on the machine alone, and not in what the cloud shows of it.
    assert ("PREFECT_API_AUTH_STRING=user:password\n" in (tmp_path / "worker.env").read_text()) is starts


def unit():
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(INFRA / "systemd" / "plumbline-worker.service")
    return parser


def test_the_unit_runs_one_training_at_a_time_and_stops_all_of_it():
    service = unit()["Service"]
    assert "--limit 1" in service["ExecStart"]
    assert (service["Restart"], service["KillMode"], service["User"]) == ("always", "control-group", "plumbline")
    assert service["NoNewPrivileges"] == "yes"
    assert service["EnvironmentFile"] == "/etc/plumbline/worker.env"


def test_systemd_itself_accepts_the_unit(tmp_path):
    assert unit().sections() == ["Unit", "Service", "Install"]
    text = (INFRA / "systemd" / "plumbline-worker.service").read_text()
    # systemd looks for the program, which is on the worker's machine only.
    copy = tmp_path / "plumbline-worker.service"
    copy.write_text(re.sub("/opt/plumbline/venv/bin/[a-z]+", "/bin/true", text))
    if shutil.which("systemd-analyze"):
        command = ["systemd-analyze", "verify", "--man=no", str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert [line for line in done.stderr.splitlines() if copy.name in line] == []


def filled(template, values):
    """Return the manifest with placeholders filled in like Prefect."""
    if isinstance(template, dict):
        return {key: filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if isinstance(template, str) and (found := re.fullmatch(r"\{\{ (\w+) \}\}", template)):
        return values[found[1]]
    return (
        re.sub(r"\{\{ (\w+) \}\}", lambda found: str(values[found[1]]), template)
        if isinstance(template, str)
        else template
    )


@pytest.fixture(scope="module")
def template():
    return json.loads((INFRA / "kubernetes" / "gpu-job-template.json").read_text())


def test_the_job_template_and_its_variables_fit_together(template):
    properties = template["variables"]["properties"]
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert used == set(properties)
    # The worker's own command alone starts a flow run: whoever makes a deployment chooses none.
    assert "command" not in used
    assert "command" not in template["job_configuration"]
    jsonschema.Draft202012Validator.check_schema(template["variables"])
    defaults = {name: item["default"] for name, item in properties.items() if "default" in item}
    assert set(properties) - set(defaults) == set(template["variables"]["required"]) == {"image"}
    jsonschema.validate({**defaults, "image": "registry/worker:1"}, template["variables"])
    for wrong in ({"gpus": 0}, {"image": ""}, {"shm_size": "8"}, {"memory": "lots"}, {"pod_watch_timeout_seconds": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**defaults, "image": "registry/worker:1", **wrong}, template["variables"])


def test_the_job_gives_one_training_its_gpu_and_repeats_nothing(template):
    defaults = {name: item.get("default") for name, item in template["variables"]["properties"].items()}
    values = {**defaults, "image": "registry/worker:1", "name": "run", "gpus": 2}
    job = filled(template["job_configuration"]["job_manifest"], values)
    assert "{{" not in json.dumps(job)
    assert (job["apiVersion"], job["kind"], job["spec"]["backoffLimit"]) == ("batch/v1", "Job", 0)
    pod = job["spec"]["template"]["spec"]
    assert set(job["spec"]) == JOB_KEYS
    # prefect-kubernetes asks for these two here, where Kubernetes ignores them.
    assert set(pod) - {"parallelism", "completions"} == POD_KEYS
    container = pod["containers"][0]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    # Prefect's worker adds these to its own variables, because they are a list.
    assert container["env"][0] == {"name": "PLUMBLINE_IMAGE", "value": "registry/worker:1"}
    suite = read_suite(ROOT / "deployments" / "suites" / "cross-cloud.toml")
    assert values["pod_watch_timeout_seconds"] >= max(place.start_seconds for place in suite.platforms.values())
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]] == {"medium": "Memory", "sizeLimit": "8Gi"}  # noqa: S108 - the pod's
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A10G"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["restartPolicy"] == "Never"
    assert pod["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize("path", sorted(INFRA.glob("*/*policy.json")), ids=lambda path: path.stem)
def test_policies_of_aws_delete_nothing_and_name_their_buckets(path):
    policy = document(f"aws/{path.name}", password_parameter=PARAMETER)
    assert policy["Version"] == "2012-10-17"
    for statement in policy["Statement"]:
        if path.stem == "outbox-bucket-policy":
            assert statement["Effect"] == "Deny"
            assert statement["Condition"]
            continue
        assert statement["Effect"] == "Allow"
        assert not [action for action in statement["Action"] if "*" in action or "Delete" in action]
        resources = statement["Resource"]
        other = {"ssm:GetParameter": PARAMETER, "autoscaling:SetDesiredCapacity": "machines"}
        if (action := statement["Action"][0]) in other or action.startswith("autoscaling:Describe"):
            assert resources == other.get(action, "*")
            continue
        for resource in [resources] if isinstance(resources, str) else resources:
            assert re.fullmatch(r"arn:aws:s3:::[a-z]+_bucket(/prefix/([a-z]+/)?\*)?", resource)
            assert ("/prefix/" in resource) != (statement["Action"] == ["s3:ListBucket"])


def test_a_worker_cannot_write_where_its_data_lies():
    policy = aws_policy("worker")
    writing = [item["Resource"] for item in policy["Statement"] if "s3:PutObject" in item["Action"]]
    places = ("records", "checkpoints", "doctor")
    assert writing == [[f"arn:aws:s3:::outbox_bucket/prefix/{place}/*" for place in places]]
    for store in ("data", "central"):
        assert not [action for action in azure_actions("worker", store) if not action.endswith("/read")]
        for allowed, _ in google_grants("worker", store):
            assert allowed <= {"storage.objects.get", "storage.objects.list"}
    assert not [action for action in azure_actions("worker", "outbox") if "delete" in action or action.endswith("*")]
    whole = {name for allowed, prefix in google_grants("worker", "outbox") if not prefix for name in allowed}
    assert whole == {f"storage.objects.{what}" for what in ("create", "get", "list")}


@pytest.mark.parametrize("path", sorted(INFRA.glob("*/trust*.json")), ids=lambda path: path.stem)
def test_roles_are_taken_only_under_a_condition(path):
    for statement in document(f"aws/{path.name}")["Statement"]:
        assert statement["Condition"]
        assert statement["Principal"] != "*"


@pytest.mark.parametrize("path", sorted(INFRA.rglob("*.md")), ids=lambda path: path.parent.name)
def test_the_readmes_name_files_that_exist(path):
    if "node_modules" not in path.parts:
        for name in re.findall(r"infra/[a-z0-9-]+/[\w.-]+\.\w+", path.read_text()):
            assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp", "control", "three-clouds"])
def test_a_module_gives_each_of_its_files_its_values_and_uses_each_file(cloud):
    """OpenTofu finds both only when it is applied."""
    text = "".join(path.read_text() for path in sorted((INFRA / cloud).glob("*.tf")))
    named = re.findall(r'(?:templatefile|file)\("\$\{path\.module}/([^"]+)"', text)
    for name in named:
        path = (INFRA / cloud / name).resolve()
        assert path.is_file(), name
        places = set(re.findall(r"\$\{(\w+)}", path.read_text()))
        if f'templatefile("${{path.module}}/{name}"' in text:
            assert {place for place in places if not re.search(rf"^\s*{place}\s+= ", text, re.MULTILINE)} <= {
                # Of an object that the root fills in.
                *re.findall(r"^ {4}(\w+) += string$", text, re.MULTILINE)
            }, name
    own = {path.name for kind in ("*.json", "*.yaml") for path in (INFRA / cloud).glob(kind)}
    assert own - {Path(name).name for name in named} <= {"server.schema.json", "worker.schema.json"}


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
def test_the_outputs_of_a_module_are_a_platform_of_a_new_suite(cloud):
    text = (INFRA / cloud / "outputs.tf").read_text()
    values = re.search(r'^output "platform" \{\n.*?  value = \{\n(.*?)^  }', text, re.MULTILINE | re.DOTALL)[1]
    own = list(NewPlatform.model_fields) if cloud != "gcp" else [*NewPlatform.model_fields][:-1]
    assert re.findall(r"^    (\w+) +=", values, re.MULTILINE) == own


def test_server_and_workers_of_the_cluster_have_the_lock_s_prefect():
    (version,) = re.findall(r'prefect = "([\d.]+)"', (INFRA / "control" / "main.tf").read_text())
    assert version == pins("controller")["prefect"]


def test_no_machine_is_on_but_for_a_round():
    assert resources("aws", "aws_autoscaling_group")["worker"]["min_size"] == "0"
    assert resources("aws", "aws_autoscaling_group")["worker"]["desired_capacity"] == "0"
    assert resources("azure", "azurerm_linux_virtual_machine_scale_set")["worker"]["instances"] == "0"
    text = (INFRA / "gcp" / "cluster.tf").read_text()
    assert "total_min_node_count = 0" in text


def test_the_road_to_three_clouds_takes_ten_values_and_six_commands():
    text = (INFRA / "three-clouds" / "variables.tf").read_text()
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^}', text, re.MULTILINE | re.DOTALL)
    page = (ROOT / "docs" / "tutorials" / "clouds.md").read_text()
    (values,) = re.findall(r"^```hcl\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^(\w+) += ", values, re.MULTILINE)
    assert set(named) == {name for name, body in blocks if "default" not in body}
    # The tenth is the address of the webhook.
    assert len(named) == 9
    (commands,) = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(commands.splitlines()) == 6


@pytest.mark.parametrize("full", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_the_lock_pins_what_every_python_needs(full):
    pinned = pins("all")
    place = {"python_full_version": full, "python_version": full.rpartition(".")[0], "extra": ""}
    installed = {
        canonicalize_name(distribution.metadata["Name"]): distribution for distribution in metadata.distributions()
    }
    asked = [Requirement(text) for name in pinned if name in installed for text in installed[name].requires or ()]
    needed = {canonicalize_name(item.name) for item in asked if item.marker is None or item.marker.evaluate(place)}
    # A CUDA build of torch needs CUDA's packages too: the GPU lock pins them.
    assert sorted(needed - pinned.keys() - pins("trainer-cuda").keys()) == []


RESOLVER = """#!/bin/sh
# Stands for pip-compile and for uv, which need the index: answers with the committed lock, as a machine with a local
# torch would. uv is called in a project of its own, whose systems tell which of the trainer's locks is asked for.
while [ $# -gt 1 ]; do
    case $1 in
        --output-file) out=$2 ;;
        --extra) extra=$2 ;;
    esac
    shift
done
if [ "$extra" = trainer ] && grep -q "platform_machine == 'x86_64'" pyproject.toml; then extra=trainer-cuda; fi
sed -e "1{/^#/d}" -e "2{/^#/d}" "$LOCKS/$extra.txt" | sed -E "s/^(torch==[0-9.]+)$/\\1+cpu/" > "$out"
[ -z "$EDIT" ] || sed -i "$EDIT" "$out"
"""


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        ("", 0, ""),
        ("s/^numpy==.*/numpy==1.0/", 1, "locks/trainer.txt"),
        ("s/^prefect==.*/prefect==1.0/", 1, "locks/controller.txt"),
        ("s/^nvidia-cublas==.*/nvidia-cublas==1.0/", 1, "locks/trainer-cuda.txt"),
        ("s/sha256:.*/sha256:0/", 0, ""),
    ],
)
def test_the_lock_script_checks_without_writing(tmp_path, edit, code, words):
    resolver = tmp_path / "resolver"
    resolver.write_text(RESOLVER)
    resolver.chmod(0o755)
    before = {path: path.read_bytes() for path in (ROOT / "locks").glob("*.txt")}
    given = {"PIP_COMPILE": resolver, "UV": resolver, "PYTHON": sys.executable, "LOCKS": ROOT / "locks", "EDIT": edit}
    environment = {**os.environ, **{key: str(value) for key, value in given.items()}}
    done = subprocess.run(
        ["bash", str(INFRA / "lock.sh"), "--check"], env=environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert {path: path.read_bytes() for path in (ROOT / "locks").glob("*.txt")} == before


CI = ROOT / "deployments" / "ci"
WORKFLOWS = [CI / "github-actions.yml", *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def steps_of(path):
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_their_actions_and_ask_for_few_permissions(path):
    content = yaml.safe_load(path.read_text())
    used = [step["uses"] for step in steps_of(path) if "uses" in step]
    assert used
    assert all(PINNED.fullmatch(name) for name in used), used
    # Beside a digest, people read the release that it is of.
    assert len(re.findall(r"uses: \S+@[0-9a-f]{40} # v[\d.]+$", path.read_text(), re.MULTILINE)) == len(used)
    assert set(content["permissions"].items()) <= {("contents", "read")}
    for job in content["jobs"].values():
        allowed = {("contents", "read"), ("id-token", "write")}
        publishes = "actions/deploy-pages@" in str(job["steps"])
        assert set(job.get("permissions", {}).items()) <= allowed | ({("pages", "write")} if publishes else set())
        assert job["timeout-minutes"] <= 300
    checkouts = [step for step in steps_of(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    # Expressions are text before they are shell: a branch's name must not become a command.
    assert not [step["run"] for step in steps_of(path) if "${{" in step.get("run", "")]


def scripts(name):
    """The commands of a CI example, each a shell script."""
    if name == "github-actions.yml":
        return [step["run"] for step in steps_of(CI / name) if "run" in step]
    return yaml.safe_load((CI / name).read_text())["plumbline-upgrade"]["script"]


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ci_examples_call_the_commands_as_they_are(name):
    modules = [doctor, upgrade]
    calls = []
    for script in scripts(name):
        assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=20, check=False).returncode == 0
        lines = script.replace("\\\n", " ").splitlines()
        calls += [re.split(r" (?:>|\|\|) ", line)[0] for line in lines if line.startswith("plumbline ")]
    parsed = [build_parser(modules).parse_args(shlex.split(call)[1:]) for call in calls]
    (gate,) = [args for args in parsed if hasattr(args, "candidate")]
    assert (gate.api, gate.json) == (True, True)
    # The lock is the pull request's; suite and code are not.
    assert str(gate.candidate).split("/")[0] in ("pull-request", ".tokens")
    assert str(gate.suite) == "$SUITE"
    installs = [line for script in scripts(name) for line in script.splitlines() if "pip install" in line]
    assert all("--require-hashes" in line or "--no-deps ." in line for line in installs)


def test_the_ci_examples_hand_the_pull_request_s_lock_to_the_gate():
    job = yaml.safe_load((CI / "github-actions.yml").read_text())["jobs"]["upgrade"]
    trusted, candidate = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert trusted["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert (candidate["path"], candidate["sparse-checkout"], "ref" in candidate) == ("pull-request", "locks", False)
    assert "head.repo.full_name == github.repository" in job["if"]
    lines = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["plumbline-upgrade"]["script"]
    order = [
        next(n for n, line in enumerate(lines) if line.startswith(word)) for word in ("cp -r", "git checkout", "pip")
    ]
    assert order == sorted(order)
    for name in ("github-actions.yml", "gitlab-ci.yml"):
        lock = re.search(r"LOCK: (\S+)", (CI / name).read_text())[1]
        assert (ROOT / lock).is_file()


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ci_examples_give_each_of_their_suite_s_stores_a_credential(name):
    text = (CI / name).read_text()
    suite = ROOT / re.search(r"SUITE: (\S+)", text)[1]
    platforms = tomllib.loads(suite.read_text())["platforms"].values()
    schemes = {platform[key].split("://")[0] for platform in platforms for key in ("data", "outbox")}
    assert schemes == {"s3", "az", "gs"}
    if name == "github-actions.yml":
        logins = {step["uses"].split("@")[0] for step in steps_of(CI / name) if "uses" in step}
        assert {"aws-actions/configure-aws-credentials", "azure/login", "google-github-actions/auth"} <= logins
    else:
        job = yaml.safe_load(text)["plumbline-upgrade"]
        assert set(job["id_tokens"]) == {"AWS_TOKEN", "AZURE_TOKEN", "GOOGLE_TOKEN"}
        sdk = {"AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS"}
        assert sdk <= job["variables"].keys()
    assert not re.search(r"(ACCESS_KEY|CLIENT_SECRET|credentials_json)", text)


def unheard(suite):
    return [result.what for result in examine_recipients(suite) if not result.well]


@pytest.mark.parametrize("path", sorted((ROOT / "deployments/suites").glob("*.toml")), ids=lambda path: path.stem)
def test_no_shipped_suite_lets_a_round_fail_in_silence(path):
    suite = read_suite(path)
    assert unheard(suite) == []
    assert suite.alerts or suite.schedule is None


@pytest.mark.parametrize("name", ["how-to/alerts.md"])
def test_no_documented_recipient_misses_a_round_that_does_not_pass(name):
    (example,) = re.findall(r"^\[\[alerts]]\n(?:\w.*\n)+", (ROOT / "docs" / name).read_text(), re.MULTILINE)
    local = read_suite(ROOT / "deployments/suites/local.toml")
    assert unheard(local.replace(alerts=tomllib.loads(example)["alerts"])) == []
