"""Equality of two short mathematical answers: own cleaning, then math-verify in a process that may be killed."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

SECONDS = 10.0
"""Maximum number of seconds of one comparison."""
ADDRESS_SPACE = 4 << 30
"""Maximum number of bytes of the comparing process's address space."""
LONGEST = 1000
"""Maximum number of characters; a longer answer is not compared."""

_DELIMITER = re.compile(r"\\\\|\\[()\[\]]|\\?\$")
_SPACING = re.compile(r"\\[,;:!]|\\(?:left|right|displaystyle)(?![A-Za-z])|[\s~]")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_PLAIN = re.compile(r"-?\d[\d,]*(?:[./]\d+)?")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BASE = re.compile(r"\d_\{?(\d+)\}?$")


class NoVerdictError(RuntimeError):
    """A comparison that took too long or crashed its process."""


def clean(answer: str) -> str:
    r"""An answer without typesetting: math delimiters, a final full stop, newlines, the sign °.

    ``\$`` is removed, too: it is a currency, and units are not compared.
    """
    answer = _DELIMITER.sub(lambda found: found.group() if found.group() == r"\\" else " ", answer)
    answer = answer.replace("^°", "°").replace("°", r"^{\circ}")
    return " ".join(answer.split()).removesuffix(r"\.").removesuffix(".").strip()


def equivalent(answer: str, gold: str) -> bool:
    """Whether ``answer`` means the same as ``gold``, both without box and delimiters. May be called from any thread.

    Units, percent signs, degree signs and currencies are ignored where only one side has them. Numerals with
    subscripts (``52_8``) must have the same base where both have one.

    Raises:
        ImportError: math-verify is not installed.
        NoVerdictError: after ``SECONDS``, or when the comparison exhausts its memory or crashes.
    """
    require_math_verify()
    answer, gold = clean(answer), clean(gold)
    if not answer or len(answer) > LONGEST:
        return False
    if _typeset_alike(answer) == _typeset_alike(gold):
        return True
    bases = [found.group(1) for found in map(_BASE.search, (answer, gold)) if found]
    if len(set(bases)) == 2:
        return False
    return _worker().ask(answer, gold)


def require_math_verify() -> None:
    """Raise ``ImportError`` unless math-verify is installed."""
    if find_spec("math_verify") is None:
        raise ImportError("grading mathematics needs math-verify: pip install 'beaconkv[eval]'")


def is_readable(gold: str) -> bool:
    """Whether math-verify can parse a known answer to more than its characters, within ``SECONDS``."""
    try:
        return _PLAIN.fullmatch(gold) is not None or _worker().ask(None, gold)
    except NoVerdictError:
        return False


def has_open_braces(text: str) -> bool:
    r"""Whether braces do not balance (``\{`` and ``\}`` are no braces)."""
    depth = 0
    for found in _BRACES.findall(text):
        depth += {"{": 1, "}": -1}.get(found, 0)
        if depth < 0:
            return True
    return depth > 0


def _typeset_alike(answer: str) -> str:
    answer = _SPACING.sub("", _TEXT.sub(r"\1", answer))
    return answer.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")


class _Worker:
    """One comparing process, started when first asked and again after it died. Threads use it one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def ask(self, answer: str | None, gold: str) -> bool:
        with self._lock:
            if self._process is None:
                self._start()
            try:
                self._process.stdin.write(json.dumps([answer, gold]) + "\n")
                self._process.stdin.flush()
                reply = self._process.stdout.readline()
            except BrokenPipeError:
                reply = ""
            except BaseException:  # interrupted: the pending reply would be read as that of the next comparison
                self._stop()
                raise
            if not reply:
                self._stop()
                raise NoVerdictError(
                    f"no verdict on {(answer or gold)[:80]!r} in {SECONDS:g} s and {ADDRESS_SPACE >> 30} GiB"
                )
            return json.loads(reply)

    def _start(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("math_worker.py")), str(SECONDS), str(ADDRESS_SPACE)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        if self._process.stdout.readline() != "ready\n":
            _, errors = self._process.communicate()
            self._process = None
            raise RuntimeError(f"the process that compares answers did not start:\n{errors}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_WORKERS: dict[int, _Worker] = {}  # by process id: a forked child must not share its parent's pipes


def _worker() -> _Worker:
    if os.getpid() not in _WORKERS:
        atexit.register(_WORKERS.setdefault(os.getpid(), _Worker())._stop)
    return _WORKERS[os.getpid()]
