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
    try:
        app(prog_name="beaconkv")
    except Exception as error:
        if os.environ.get("BEACONKV_DEBUG"):
            raise
        expected = isinstance(error, (ValueError, ImportError, OSError))
        kind = "" if expected else f"{type(error).__name__}: "
        sys.exit(f"error: {kind}{error}" + ("" if expected else "\n(BEACONKV_DEBUG=1 shows where)"))
