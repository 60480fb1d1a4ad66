"""The mistakes, floor by floor."""

from . import cache, integrations, ops, policies, twins

MUTANTS = [*ops.MUTANTS, *twins.MUTANTS, *policies.MUTANTS, *cache.MUTANTS, *integrations.MUTANTS]
