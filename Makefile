# Everything runs in .venv, which is made on first use and again when pyproject.toml changes.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet

# The viewer of `make soak`: a tool of development only, in an environment of its own (850 MB). SOAK_PHOENIX names one
# that is there already.
SOAK_VENV := .soak-venv
PHOENIX := arize-phoenix==20.26.1
SOAK_PHOENIX ?= $(SOAK_VENV)/bin/phoenix

# Frameworks that install together with all the rest; `make adapters` has an environment for each of them, and the others.
FRAMEWORKS := pydantic-ai,openai-agents,langchain,agent-framework,fastmcp

# How many times as many examples as in `make test` Hypothesis tries in `make soak`.
EXAMPLES ?= 20

# Twice as many as there are processors, as tests wait for a third to a half of their time.
WORKERS := $(shell n=$$(($$(getconf _NPROCESSORS_ONLN) * 2)); echo $$((n < 8 ? n : 8)))

# Where it is set, every process that the tests start would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check bench soak cluster mutants adapters peers hosts docs images site clean

demo: $(VENV)/.demo
	$(VENV)/bin/hookline demo

test: $(VENV)/.test
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(VENV)/.check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.bench
	$(PY) -m benchmarks $(ARGS)

soak: $(VENV)/.bench $(SOAK_PHOENIX)
	$(PY) -m pytest -m soak --timeout 0
	HOOKLINE_EXAMPLES=$(EXAMPLES) $(PY) -m pytest -m hypothesis -n $(WORKERS) --dist worksteal --timeout 0
	$(PY) -m benchmarks.soak --phoenix $(SOAK_PHOENIX) $(ARGS)

cluster: $(VENV)/.bench
	$(PY) -m benchmarks.cluster $(ARGS)

mutants: $(VENV)/.bench
	$(PY) -m benchmarks.mutants $(ARGS)

adapters:
	python3 tests/adapters/environments.py $(ARGS)

peers:
	python3 -m tests.peers $(ARGS)

hosts: $(VENV)/.test
	$(PY) -m tests.hosts.real $(ARGS)

docs: $(VENV)/.test
	$(PY) -m pytest tests/docs $(ARGS)

images: $(VENV)/.test
	$(PY) -m tests.server.pictures $(ARGS)
	$(PY) -m tests.evals.pictures

site: $(VENV)/.site
	$(PY) -m zensical build --clean --strict

clean:
	rm -rf $(VENV) $(SOAK_VENV) .adapters-venv .peers .hosts-venv .cache build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache

$(VENV)/.pip:
	python3 -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.pip
	$(PIP) install --editable '.[cli,agentdojo,otel,evals]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.pip
	$(PIP) install --editable '.[cli,agentdojo,otel,evals,models,mcp,nats,dbos,agent-hooks,server,$(FRAMEWORKS)]' --group test --group check --group docs
	@touch $@ $(VENV)/.demo $(VENV)/.site

$(VENV)/.site: pyproject.toml | $(VENV)/.pip
	$(PIP) install --group docs
	@touch $@

$(VENV)/.check: $(VENV)/.test
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.pip
	$(PIP) install --editable '.[cli,agentdojo,otel,evals,models,mcp,nats,dbos,agent-hooks,server,$(FRAMEWORKS)]' --group test --group bench
	@touch $@

$(SOAK_VENV)/bin/phoenix:
	python3 -m venv $(SOAK_VENV)
	$(SOAK_VENV)/bin/python -m pip --disable-pip-version-check --quiet install '$(PHOENIX)'
