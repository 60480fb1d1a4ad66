"""A process of its own that compares two answers by math-verify. `equivalence` runs it as a file.

Symbolic comparison may never end (``9^{9^{9^9}}``) or exhaust the memory, inside C code. math-verify's own
time limits are signals: they reach the main thread only, and no C code. This process can be killed instead.
"""

import faulthandler
import json
import logging
import os
import sys


def main(seconds: float, address_space: int) -> None:
    """Read lines of JSON ``[answer, gold]`` or ``[null, gold]``; write ``true`` or ``false`` for each.

    Exit when a line takes too long.
    """
    replies, sys.stdout = sys.stdout, sys.stderr  # output of the libraries must not be read as a reply
    logging.disable(logging.CRITICAL)
    # The folder of this file comes first on the path, where its files would hide modules of the same name.
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
    _limit_memory(address_space)
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig()]

    def parsed(text: str) -> list:
        return parse(f"${text}$", config, parsing_timeout=None)

    print("ready", file=replies, flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings are not read from here on, and a full pipe blocks
    for line in sys.stdin:
        faulthandler.dump_traceback_later(seconds, exit=True)
        answer, gold = json.loads(line)
        try:
            if answer is None:  # check only whether the known answer can be parsed to more than its characters
                equal = any(not isinstance(found, str) for found in parsed(gold))
            else:
                equal = bool(verify(parsed(gold), parsed(answer), allow_set_relation_comp=True, timeout_seconds=None))
        except Exception:  # any failure to understand an answer, RecursionError and MemoryError included
            equal = False
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(equal), file=replies, flush=True)


def _limit_memory(address_space: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (address_space, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):  # some systems have no such limit
        pass


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
