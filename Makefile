# Everything runs in .venv, which is made on first use and again when pyproject.toml changes.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet

.PHONY: demo test check bench docs clean

demo: $(VENV)/.demo
	$(VENV)/bin/hookline demo

test: $(VENV)/.test
	$(PY) -m pytest $(ARGS)

check: $(VENV)/.check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.bench
	$(PY) -m benchmarks $(ARGS)

docs: $(VENV)/.test
	$(PY) -m pytest tests/docs $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache

$(VENV)/.pip:
	python3 -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.pip
	$(PIP) install --editable '.[cli,agentdojo,otel]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.pip
	$(PIP) install --editable '.[cli,agentdojo,otel]' --group test --group check
	@touch $@ $(VENV)/.demo

$(VENV)/.check: $(VENV)/.test
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.pip
	$(PIP) install --editable '.[cli,agentdojo,otel]' --group bench
	@touch $@
