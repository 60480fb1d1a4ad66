# Shared functions of the checks for a GPU, which source this file from the project's folder, with their arguments.
out=${1:-results/gpu}
python=${PYTHON:-python}
mkdir -p "$out"
export PYTHONPATH=src:. HF_HUB_OFFLINE=1
failed=0

part() { # seconds, title, command...
    local limit=$1 title=$2
    shift 2
    printf '\n== %s\n' "$title"
    timeout "$limit" "$@" 2>"$out/last.err" || {
        printf 'FAILED (%s): %s\n' "$?" "$title"
        tail -n 25 "$out/last.err"
        failed=1
    }
}
