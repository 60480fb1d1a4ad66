"""Runs the tests over each mutant and writes docs/mutation.md: ``python -m tests.mutation.run``.

Each mutant is made in a temporary copy of the tree, alone. First the same tests must pass on the copy without one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import hypothesis  # noqa: F401 - imported once for all children
import pytest
import torch  # noqa: F401
import transformers.modeling_utils  # noqa: F401

from .mutant import ROOT, Mutant
from .mutants import MUTANTS
from .table import SURVIVED, TABLE, TIMED_OUT, read, write

FORK = multiprocessing.get_context("fork")
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
            write(found)  # whoever stops it keeps what was found
            seconds = time.perf_counter() - start
            print(f"{seconds:4.0f} s  {mutant.file}: {mutant.what}: {found[mutant.key]}", flush=True)
    missed = [m for m in MUTANTS if found.get(m.key, SURVIVED) == SURVIVED and not m.equivalent]
    print(f"{TABLE.relative_to(ROOT)}: {len(MUTANTS)} mistakes, {len(missed)} not noticed")
    sys.exit(bool(missed))


def require_clean(copy: Path, mutants: Iterable[Mutant]) -> None:
    """Stop unless all tests that will be run pass without a mutant."""
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
    report, output = copy / "failed.txt", copy / "output.txt"
    report.unlink(missing_ok=True)
    arguments = ["-x", "-q", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider", *tests]
    process = FORK.Process(target=run_pytest, args=(copy, output, arguments))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)  # the processes of the tests, too
        process.join()
        return TIMED_OUT
    if process.exitcode == 0:
        return None
    if not report.exists():
        raise SystemExit(f"pytest failed, and no test did:\n{output.read_text(encoding='utf-8')}")
    return report.read_text(encoding="utf-8").splitlines()[0]


def run_pytest(copy: Path, output: Path, arguments: list[str]) -> None:
    """In a child: what the library needs is imported already, the library and its tests come from the copy."""
    os.setsid()
    os.chdir(copy)
    own = dict(PYTHONPATH=f"{copy / 'src'}{os.pathsep}{copy}", PYTHONDONTWRITEBYTECODE="1")
    os.environ.update(own, MUTATION_REPORT=str(copy / "failed.txt"))
    # A mutant may have the size and the time of another: no bytecode is kept.
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(copy), str(copy / "src")]
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "beaconkv")]:
        del sys.modules[name]
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = pytest.main(arguments)
    where = sys.modules["beaconkv"].__file__ if "beaconkv" in sys.modules else str(copy)
    os._exit(code if where.startswith(str(copy)) else 70)


if __name__ == "__main__":
    main()
