#!/usr/bin/env bash
# Tests of every subpackage, on each Python of the classifiers that is found here; environments are kept (.venv-py310, ...).
#   .ci/pythons.sh [3.10 3.12 ...]
# Where no build of torch for CPUs exists for a Python, the sources are compiled and nothing is run, with a message.
# CUDA_TORCH=1 then takes the build with CUDA (5 GB per environment).
set -euo pipefail
cd "$(dirname "$0")/.."
tests=(tests/ops tests/policies tests/cache tests/test_architecture.py tests/test_memory.py tests/integrations/test_generate.py)
versions=("$@")
[ $# -gt 0 ] || mapfile -t versions < <(sed -n 's/.*Programming Language :: Python :: \(3\.[0-9]*\).*/\1/p' pyproject.toml)
torch=$(sed -n 's/^torch==//p' constraints.txt)

interpreter() { # version -> its path, or nothing
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            echo "$candidate"
            return
        fi
    done
}

set_up() { # interpreter, folder
    local wanted="torch==$torch" pip=("$2/bin/python" -m pip install -q --disable-pip-version-check --prefer-binary)
    if [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] && [ -z "${CUDA_TORCH:-}" ]; then
        wanted+="+cpu" # without it, the build with CUDA is installed
    fi
    rm -rf "$2"
    "$1" -m venv "$2"
    if ! "${pip[@]}" "$wanted" >/dev/null 2>&1; then
        rm -rf "$2"
        return
    fi
    "${pip[@]}" -c constraints.txt -e . "hypothesis>=6.100" "pytest>=8" "pytest-xdist>=3.6"
    touch "$2/ready"
}

failed=0 ran=() compiled=() missing=()
for version in "${versions[@]}"; do
    folder=".venv-py${version/./}"
    python=$(interpreter "$version")
    if [ -z "$python" ]; then
        missing+=("$version")
        continue
    fi
    if [ ! -e "$folder/ready" ] || [ pyproject.toml -nt "$folder/ready" ] || [ constraints.txt -nt "$folder/ready" ]; then
        echo "== setting up $folder"
        set_up "$python" "$folder"
        if [ ! -e "$folder/ready" ]; then
            echo "no torch for CPUs for Python $version: the sources are compiled, nothing is run"
            PYTHONPYCACHEPREFIX=$(mktemp -d) "$python" -m compileall -q src tests benchmarks training examples || failed=1
            compiled+=("$version")
            continue
        fi
    fi
    echo "== Python $version: $("$folder/bin/python" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)')"
    "$folder/bin/python" -m pytest -n 2 -p no:cacheprovider "${tests[@]}" || failed=1
    ran+=("$version")
done
echo "Python: tests run on ${ran[*]:-none}; only compiled on ${compiled[*]:-none} (no torch for CPUs); not found ${missing[*]:-none}"
exit $failed
