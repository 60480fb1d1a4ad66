"""The list of mistakes cannot rot: each still applies, and the table speaks of these and no others."""

import ast
from collections import Counter

import pytest

from .mutant import ROOT
from .mutants import MUTANTS
from .table import read


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.what}")
def test_applies(mutant):
    text = mutant.path(ROOT).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert mutant.tests
    assert all((ROOT / test).is_file() for test in mutant.tests)


def test_each_is_one_of_a_kind():
    names = Counter(mutant.key for mutant in MUTANTS)
    assert [name for name, count in names.items() if count > 1] == []


def test_the_table_speaks_of_these():
    assert set(read()) == {mutant.key for mutant in MUTANTS}
