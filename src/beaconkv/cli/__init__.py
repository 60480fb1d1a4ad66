"""The command line. ``beaconkv --help`` lists the commands."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point: errors that name what to do differently are shown without a traceback."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"the command line needs the package {error.name!r}: pip install 'beaconkv[cli]'")
    quiet_libraries()
    try:
        app(prog_name="beaconkv")
    except Exception as error:
        if os.environ.get("BEACONKV_DEBUG"):
            raise
        expected = isinstance(error, (ValueError, ImportError, OSError))
        kind = "" if expected else f"{type(error).__name__}: "
        sys.exit(f"error: {kind}{in_words(error)}" + ("" if expected else "\n(BEACONKV_DEBUG=1 shows where)"))


def quiet_libraries() -> None:
    """Keep other libraries' bars out of logs. They read these variables when they are imported, which is later.

    On a terminal a download keeps its bar. Loading has none in either case: the commands report what takes time.
    """
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TQDM_DISABLE", "1")


def in_words(error: Exception) -> str:
    """The message of an error; for an error of the file system, a sentence without its number."""
    name = getattr(error, "filename", None)
    if isinstance(error, OSError) and name is not None:
        for kind, words in (
            (FileNotFoundError, "no such file"),
            (IsADirectoryError, "a file is needed here, and this is a folder"),
            (NotADirectoryError, "a folder is needed here, and this is a file"),
            (PermissionError, "no permission to use"),
        ):
            if isinstance(error, kind):
                return f"{words}: {os.fsdecode(name) if isinstance(name, bytes) else name}"
    return str(error)
