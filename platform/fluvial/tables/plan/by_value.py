"""
Functions of a project sent to Spark's workers with their code: the project's folder is on the path of the driver alone.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from fluvial.tables.declare.reducers import module_of

# cloudpickle's list of modules that travel by value is the process's.
_BY_VALUE = Lock()


@contextmanager
def by_value(function: Any, *modules: str) -> Iterator[None]:
    """
    For a ``with``: what is pickled meanwhile has the code of the package that a function is from, and of `modules`.
    """
    from pyspark import cloudpickle

    names = {*modules}
    root = (module_of(function) or "").partition(".")[0]
    if root not in {"", "__main__", "builtins", "fluvial"}:
        names.add(root)
    with _BY_VALUE:
        own = names - cloudpickle.list_registry_pickle_by_value()
        sent = [sys.modules[name] for name in own if name in sys.modules]
        for module in sent:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in sent:
                cloudpickle.unregister_pickle_by_value(module)
