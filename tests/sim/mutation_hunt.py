"""
Rules broken on purpose, one by one, for as long as seeds run: what notices, and how soon.

A mutation is a function that returns the attributes of real classes to replace.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest.mock import patch

from log_broker.sim.runner import MakeWorld, run_seed

Patch = tuple[object, str, Any]
Mutations = Mapping[str, Callable[[], list[Patch]]]


class Finding(NamedTuple):
    """What noticed a mutation, and how many seeds it took; None: nothing did."""

    mutation: str
    check: str | None
    seeds: int
    message: str


def named(*makers: Callable[[], list[Patch]]) -> Mutations:
    """Return mutations by what their functions are called."""
    return {make.__name__.strip("_").replace("_", " "): make for make in makers}


@contextmanager
def broken(mutations: Mutations, mutation: str) -> Iterator[None]:
    """Break a rule for as long as this lasts."""
    with ExitStack() as stack:
        for target, attribute, value in mutations[mutation]():
            stack.enter_context(patch.object(target, attribute, value))
        yield


def hunt(mutations: Mutations, make_world: MakeWorld, mutation: str, seeds_max: int) -> Finding:
    """Run seeds with a rule broken until a check notices."""
    with broken(mutations, mutation):
        for seed in range(seeds_max):
            failure = run_seed(make_world, seed).failure
            if failure is not None:
                return Finding(mutation, failure.check, seed + 1, failure.message)
    return Finding(mutation, None, seeds_max, "")


def tell(program: str, mutations: Mutations, make_world: MakeWorld, *, seeds_max: int) -> int:
    """Print the table, as the command line asks for it; return 1 if a mutation went unnoticed."""
    parser = argparse.ArgumentParser(prog=program, description="Break rules on purpose: which check notices, how soon.")
    parser.add_argument("--seeds-max", type=int, default=seeds_max, help="give a mutation up after so many seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("names", nargs="*", metavar="name", help="only these mutations")
    options = parser.parse_args()
    names = options.names or list(mutations)
    missed = 0
    print(f"{'the rule that is broken':<48} {'noticed by':<44} seeds")
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for finding in pool.map(partial(hunt, mutations, make_world, seeds_max=options.seeds_max), names):
            missed += finding.check is None
            print(f"{finding.mutation:<48} {finding.check or 'NOTHING':<44} {finding.seeds}", flush=True)
    print(f"{len(names) - missed} of {len(names)} noticed")
    return 1 if missed else 0
