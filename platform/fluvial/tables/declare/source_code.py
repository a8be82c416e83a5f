"""
The text that decides what a function of a project does: its own, and that of all it uses in the project's modules.

Of a module the statements count that bind a name which is used, and those that bind none, as they may change anything.
They are compared as syntax trees, to which comments and formatting are nothing.
"""

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import FunctionType
from typing import Any

# By these a function reaches what its text does not name.
_DYNAMIC = frozenset(("__import__", "eval", "exec", "globals", "import_module", "locals", "vars"))
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_NO_FILE = "<string>"  # of code that was compiled from a text
_VALUES = (bool, bytes, float, int, str, type(None))


@lru_cache(maxsize=1024)
def source_digest(function: Any) -> str:
    """
    A fingerprint of that text, which is another one after a change of it, and perhaps after others.

    It is taken once, as the text may change while the function in this process does not. Raises OSError or TypeError
    where the text is not to be had: of a callable object, and of what was typed in.
    """
    used = _Used()
    used.take_function(function)
    return hashlib.sha256("\n".join(used.text()).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Module:
    """The statements of a module, by number; `root` is the folder that its project is imported from."""

    name: str
    file: Path
    root: Path

    @cached_property
    def statements(self) -> list[ast.stmt]:
        return ast.parse(self.file.read_bytes()).body

    @cached_property
    def binding(self) -> Mapping[str, list[int]]:
        """The statements that bind each name. Those within a block count as binding none."""
        found: dict[str, list[int]] = {}
        for number, statement in enumerate(self.statements):
            for name in _bound(statement):
                found.setdefault(name, []).append(number)
        return found

    @cached_property
    def acting(self) -> list[int]:
        """The statements that do something other than to bind a name."""
        return [number for number, each in enumerate(self.statements) if not _bound(each) and not _is_nothing(each)]

    @property
    def package(self) -> str:
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass
class _Used:
    """What is used so far: statements of modules by their numbers, and values that no text says."""

    modules: dict[str, _Module | None] = field(default_factory=dict)
    statements: dict[str, set[int]] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)

    def take_function(self, function: Any) -> None:
        """Take a function with what it uses, and the values that it was made with."""
        while isinstance(function, functools.partial):
            self._take_values([*function.args, *function.keywords.values()])
            function = function.func
        function = inspect.unwrap(function)
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is no function")
        module = self._module_of(function)
        if module is None:
            self.values.append(ast.unparse(ast.parse(inspect.cleandoc("\n" + _text_of(function)))))
            return
        name = function.__qualname__.partition(".")[0]
        if name in module.binding:
            self._take_name(module, name)
        else:
            self._take_all(module)
        self._take_values([cell.cell_contents for cell in function.__closure__ or ()])

    def text(self) -> Iterator[str]:
        """All that is used, in the order of the modules' names and of their statements."""
        for name, numbers in sorted(self.statements.items()):
            module = self.modules[name]
            assert module is not None
            yield from (f"{name}: {ast.unparse(module.statements[number])}" for number in sorted(numbers))
        yield from self.values

    def _take_values(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, _VALUES):
                self.values.append(repr(value))
            elif isinstance(value, list | tuple):
                self._take_values(list(value))
            elif isinstance(value, dict):
                self._take_values([part for item in value.items() for part in item])
            elif inspect.isfunction(value):
                with suppress(OSError):
                    self.take_function(value)

    def _take_name(self, module: _Module, name: str) -> None:
        for number in (*module.binding.get(name, ()), *module.acting):
            self._take(module, number)

    def _take_all(self, module: _Module) -> None:
        for number, statement in enumerate(module.statements):
            if not _is_nothing(statement):
                self._take(module, number)

    def _take(self, module: _Module, number: int) -> None:
        taken = self.statements.setdefault(module.name, set())
        if number in taken:
            return
        taken.add(number)
        for node in ast.walk(module.statements[number]):
            match node:
                case ast.Import():
                    for alias in node.names:
                        self._take_path(alias.name, module)
                case ast.ImportFrom():
                    self._take_from(node, module)
                case ast.Name(id=name) | ast.Attribute(attr=name) if name in _DYNAMIC:
                    self._take_all(module)
                case ast.Name(id=name, ctx=ast.Load()) if name in module.binding:
                    self._take_name(module, name)

    def _take_path(self, name: str, importing: _Module) -> None:
        """Take a module whole, and the packages that it lies in."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            module = self._module(".".join(parts[:length]), importing.root)
            if module is not None:
                self._take_all(module)

    def _take_from(self, node: ast.ImportFrom, importing: _Module) -> None:
        base = node.module or ""
        with suppress(ImportError):
            base = resolve_name("." * node.level + base, importing.package)
        module = self._module(base, importing.root)
        if module is None:
            return
        for alias in node.names:
            if alias.name in module.binding:
                self._take_name(module, alias.name)
            elif alias.name == "*" or self._module(f"{base}.{alias.name}", importing.root) is None:
                self._take_all(module)
            else:
                self._take_path(f"{base}.{alias.name}", importing)

    def _module_of(self, function: Any) -> _Module | None:
        """The module of a function, if it is a file and has the function's text."""
        name, file = function.__module__, function.__code__.co_filename
        if not file.endswith(".py") or getattr(sys.modules.get(name), "__file__", None) != file:
            return None
        path = Path(file).resolve()
        depth = name.count(".") + (path.name == "__init__.py")
        return self.modules.setdefault(name, _Module(name, path, path.parents[depth]))

    def _module(self, name: str, root: Path) -> _Module | None:
        """The module of this name, if it is one of the project below a folder."""
        if name not in self.modules:
            # To find a module imports the packages that it lies in: those of others, Spark's say, are left alone.
            is_near = any(_is_below(root, place) for place in _places(name.partition(".")[0]))
            file = _file_of(name) if is_near else None
            self.modules[name] = None if file is None or not _is_below(root, file) else _Module(name, file, root)
        return self.modules[name]


def _is_below(root: Path, place: Path) -> bool:
    """Whether a file or folder is the project's, and not of an environment within it."""
    return root in place.parents and not _INSTALLED & {*place.relative_to(root).parts}


def _places(package: str) -> list[Path]:
    """Where a package at the top is, without importing it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return []
    found = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return [Path(place).resolve() for place in found]


def _file_of(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement binds and does no more than that; none where it may do more."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Import():
            return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        case ast.ImportFrom():
            names = [alias.asname or alias.name for alias in statement.names]
            return [] if "*" in names else names
        case ast.Assign():
            targets = [each for target in statement.targets for each in _targets(target)]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            return names if len(names) == len(targets) else []
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _targets(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _text_of(function: FunctionType) -> str:
    """The text of a function. Raises OSError where there is none."""
    if function.__code__.co_filename == _NO_FILE:
        # From Python 3.13 on this may be the name of what `python -c` runs, which has another text.
        raise OSError("could not get source code")
    return inspect.getsource(function)


def _is_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is a text that documents, or what a module does as a program alone."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False
