# make demo   set up and grade the reference solutions of two labs
# make test   set up, check and test
# make check  set up, then ruff, mypy and the import rules

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: demo test test-all check setup starters bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Python 3.11 or newer is needed; {sys.executable} is {v.major}.{v.minor}. Set PYTHON=/path/to/python3.11.")'
	@echo "==> making a virtual environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing the grader, torch, triton and the test tools from constraints.txt (once; about a minute, more on a slow network)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[triton,cuda,plots,pages,notebooks,dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@echo "==> grading the reference solution of lab02 (NumPy)"
	@$(BIN)/grade lab02 --submission solutions/lab02_online_softmax/reference
	@echo "==> grading the reference solution of lab06 (Triton, on the CPU through its interpreter, about half a minute)"
	@$(BIN)/grade lab06 --submission solutions/lab06_fa2_forward/reference --device cpu
	@echo "==> done. Your turn: edit starter/lab02_online_softmax/online_softmax.py, then run $(BIN)/grade lab02"

check: $(STAMP)
	@echo "==> ruff format, ruff check, mypy"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

test: check
	@echo "==> tests (slow sweeps left out; \`make test-all\` runs them too)"
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup -m 'not slow' $(ARGS)

test-all: check
	@echo "==> all tests, slow sweeps included"
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup $(ARGS)

starters: $(STAMP)
	@$(BIN)/python -m grader.canary
	@$(BIN)/python -m grader.starter

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info
