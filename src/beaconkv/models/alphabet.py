"""The alphabet of the bundled reasoner and of the problems it solves. Each character is one token.

Twenty-four letters have four forms, and the form shows the meaning of a letter:

    a  key of a rule         occurs in the prompt once, at the head of its row
    A  mention of a rule     an exit of a row, an item of the question
    ⓐ  place in a list       a list is followed from one item to the next
    α  note                  written in the chain, and looked up again later
"""

from __future__ import annotations

LOWER = "abcdefghijklmnopqrstuvwx"
UPPER = LOWER.upper()
CIRCLED = "".join(chr(0x24D0 + i) for i in range(24))
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
DIGITS = "0123456789"
OPERATIONS = "+-*"
MARKS = ";=?>|[]()!<.%$@^"
END = "\n"
PAD = "_"

CLASSES = (LOWER, UPPER, CIRCLED, GREEK, DIGITS, OPERATIONS)
"""Classes of characters. A chain stays readable where a character is replaced by another one of its class."""
CHARACTERS = PAD + END + DIGITS + OPERATIONS + MARKS + LOWER + UPPER + CIRCLED + GREEK

_FORMS = {letter: i for form in (LOWER, UPPER, CIRCLED, GREEK) for i, letter in enumerate(form)}


def lower(letter: str) -> str:
    """The key of any form of a letter."""
    return LOWER[_FORMS[letter]]


def upper(letter: str) -> str:
    """The mention of any form of a letter."""
    return UPPER[_FORMS[letter]]


def circled(letter: str) -> str:
    """The place in a list of any form of a letter."""
    return CIRCLED[_FORMS[letter]]


def greek(letter: str) -> str:
    """The note of any form of a letter."""
    return GREEK[_FORMS[letter]]
