#!/usr/bin/env bash
# The package without its extras: the wheel is built, inspected, installed in an empty environment with the core
# dependencies alone, and used. This takes about a minute; Python is $PYTHON, or python3.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip=(-m pip --disable-pip-version-check)
"$python" "${pip[@]}" wheel -q --no-deps -w "$work/dist" .
wheel=$(echo "$work"/dist/beaconkv-*.whl)
git ls-files src/beaconkv | sed 's,^src/,,' >"$work/files"
"$python" -m venv "$work/env"
"$work/env/bin/python" "${pip[@]}" install -q --prefer-binary -c constraints.txt "$wheel"
# transformers 5 installs typer for a command line of its own; transformers 4 does not, and the core does not need it.
"$work/env/bin/python" "${pip[@]}" uninstall -q -y typer rich
cp .ci/wheel_check.py "$work"
cd "$work" # not the folder of the sources
BEACONKV_CACHE=$work/cache env/bin/python -W ignore wheel_check.py "$wheel" files
