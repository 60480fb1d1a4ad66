"""Runs the tests over each mutant and writes docs/mutation.md: ``python -m tests.mutation.run``.

Each mutant is made in a temporary copy of the tree, alone. First the same tests must pass on the copy without one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from .mutant import ROOT, Mutant
from .mutants import MUTANTS
from .table import SURVIVED, TABLE, TIMED_OUT, read, write

TIMEOUT = 180
"""Seconds after which a mutant counts as noticed: the tests take less without one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="mistakes whose words or file contain this; the others keep their rows"
    )
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only in f"{m.file} {m.what}"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        for name in ("src", "tests", "pyproject.toml"):
            source, target = ROOT / name, copy / name
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        require_clean(copy, chosen)
        found = read() if arguments.only else {}
        for mutant in chosen:
            start = time.perf_counter()
            found[mutant.key] = run_over(copy, mutant)
            seconds = time.perf_counter() - start
            print(f"{seconds:4.0f} s  {mutant.file}: {mutant.what}: {found[mutant.key]}", flush=True)
    write(found)
    missed = [m for m in MUTANTS if found.get(m.key, SURVIVED) == SURVIVED and not m.equivalent]
    print(f"{TABLE.relative_to(ROOT)}: {len(MUTANTS)} mistakes, {len(missed)} not noticed")
    sys.exit(bool(missed))


def require_clean(copy: Path, mutants: Iterable[Mutant]) -> None:
    """Stop unless all tests that will be run pass on the copy, and import the library from it."""
    code = "import beaconkv; print(beaconkv.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], env=environment(copy), cwd=copy, capture_output=True, text=True
    )
    if not where.stdout.startswith(str(copy)):
        raise SystemExit(f"the copy is not what is imported: {where.stdout}{where.stderr}")
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    if (failed := first_failure(copy, tests, timeout=None)) is not None:
        raise SystemExit(f"a test fails without any mutant: {failed}")


def run_over(copy: Path, mutant: Mutant) -> str:
    """The test that noticed the mutant; or that none did."""
    path = mutant.path(copy)
    clean = path.read_text(encoding="utf-8")
    path.write_text(mutant.applied(clean), encoding="utf-8")
    try:
        return first_failure(copy, mutant.tests, TIMEOUT) or SURVIVED
    finally:
        path.write_text(clean, encoding="utf-8")


def first_failure(copy: Path, tests: Iterable[str], timeout: float | None) -> str | None:
    """Node id of the first test that fails, or None."""
    report = copy / "failed.txt"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "tests.mutation.plugin",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return TIMED_OUT
    if process.returncode == 0:
        return None
    if not report.exists():
        raise SystemExit(f"pytest failed, and no test did:\n{output.decode()}")
    return report.read_text(encoding="utf-8").splitlines()[0]


def environment(copy: Path) -> dict[str, str]:
    """Imports come from the copy; no bytecode is written, since a mutant may have the size and time of another."""
    own = dict(PYTHONPATH=f"{copy / 'src'}{os.pathsep}{copy}", PYTHONDONTWRITEBYTECODE="1", TRITON_INTERPRET="1")
    return {**os.environ, **own, "MUTATION_REPORT": str(copy / "failed.txt")}


if __name__ == "__main__":
    main()
