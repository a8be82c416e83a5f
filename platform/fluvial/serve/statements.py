"""
Which statements of strangers are asked: one query of the warehouse's tables, with functions that are known.

sqlglot reads the text, and what is asked is written again from what it read: nothing is asked that was not judged,
however two parsers differ in comments, quotes and escapes.
"""

import logging
from collections.abc import Collection, Iterator

from sqlglot import Token, TokenType, exp, tokenize
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from fluvial.serve.errors import NoTableError, RefusedStatementError
from fluvial.serve.functions import FUNCTIONS

# It warns of each command that it does not read, with what a stranger has sent.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

CHARACTERS_MAX = 20_000
DEPTH_MAX = 200
STEPS_MAX = 50
"""How often the parser may step over each token, on average: most queries take 1 to 3."""
CATALOG = "spark_catalog"
"""What Spark calls the catalog of all tables, and what tools that know of catalogs write before their names."""
_DIALECT = "spark"

# What is in none of the queries that are let through, however deep.
_NEVER: dict[type[exp.Expr], str] = {
    exp.Command: "a command",
    exp.DDL: "a definition",
    exp.DML: "a change of data",
    exp.Hint: "a hint",
    exp.Into: "INTO",
    exp.Lock: "a lock",
    exp.Parameter: "a variable",
    exp.Pivot: "PIVOT",
    exp.Placeholder: "a parameter without a value",
    exp.QueryTransform: "TRANSFORM … USING",
    exp.TableSample: "TABLESAMPLE",
}
# Words before a parenthesis that are no functions: of the grammar, and of types.
_WORDS = """
all and anti any as between binary by case char cross cube decimal distinct div else end except exists filter from
full group having ilike in inner intersect is join lateral left like limit minus not numeric offset on or order outer
over partition regexp right rlike rollup select semi set sets some sort then timestamp try_cast union using values
varchar view when where with within
"""
_NO_FUNCTIONS = frozenset(_WORDS.split())


def judged(text: str, tables: Collection[str]) -> str:
    """
    Return the query to ask; `tables` are the names that it may read from.

    Raises :class:`RefusedStatementError` for what is not let through and :class:`NoTableError`.
    """
    if len(text) > CHARACTERS_MAX:
        raise RefusedStatementError(
            f"a statement has at most {CHARACTERS_MAX:,} characters, and this one {len(text):,}"
        )
    if not text.isprintable() and any(ord(each) < 32 and each not in "\t\n\r" for each in text):
        raise RefusedStatementError("the statement holds control characters")
    try:
        tokens = tokenize(text, dialect=_DIALECT)
        trees = [tree for tree in _BoundedParser(len(tokens) * STEPS_MAX).parse(tokens, text) if tree is not None]
        if len(trees) != 1 or not isinstance(trees[0], exp.Query):
            raise RefusedStatementError("one SELECT is asked at a time, and nothing else")
        (tree,) = trees
        _judge_nodes(tree, tables)
        query = _written(tree)
        for alias in tree.find_all(exp.TableAlias):
            alias.set("columns", None)  # t(a, b) looks like a call
        _judge_functions(_written(tree))
    except SqlglotError as error:
        raise RefusedStatementError(f"the statement cannot be read: {_plain(error)}") from error
    except RecursionError as error:
        raise RefusedStatementError("the statement is nested too deeply") from error
    return query


class _BoundedParser(SparkParser):
    """
    sqlglot tries alternatives within alternatives: twenty `struct(` in each other would take it for ever.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(dialect=_DIALECT)
        self._steps = steps

    def _advance(self, times: int = 1) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise RefusedStatementError("the statement takes too long to read: it is nested too deeply")
        super()._advance(times)


def _written(tree: exp.Expr) -> str:
    return tree.sql(dialect=_DIALECT, comments=False, normalize_functions="lower")


def _judge_nodes(tree: exp.Expr, tables: Collection[str]) -> None:
    within: set[str] = set()
    left = [(tree, 0)]
    while left:
        node, depth = left.pop()
        if depth > DEPTH_MAX:
            raise RefusedStatementError("the statement is nested too deeply")
        never = next((what for kind, what in _NEVER.items() if isinstance(node, kind)), None)
        if never is not None:
            raise RefusedStatementError(f"{never} is not let through: one SELECT of tables is")
        if isinstance(node, exp.With) and node.args.get("recursive"):
            raise RefusedStatementError("WITH RECURSIVE is not let through")
        if isinstance(node, exp.CTE):
            # Where it is not in scope the engine looks the name up, and must not take it for a path.
            if not node.alias.isidentifier():
                raise RefusedStatementError(f"WITH {node.alias[:100]}: the name is made of letters, digits and _")
            within.add(node.alias.lower())
        left.extend((each, depth + 1) for each in node.iter_expressions())
    for table in tree.find_all(exp.Table):
        _judge_table(table, tables, within)


def _judge_table(node: exp.Table, tables: Collection[str], within: Collection[str]) -> None:
    if node.catalog.lower() == CATALOG and isinstance(node.args["catalog"], exp.Identifier):
        node.set("catalog", None)
    if not isinstance(node.this, exp.Identifier) or node.catalog:
        raise RefusedStatementError(f"{node.sql(dialect=_DIALECT)[:200]} is no table of the warehouse")
    if not node.db and node.name.lower() in within:
        return
    name = f"{node.db}.{node.name}"
    if name not in tables:
        raise NoTableError(name.removeprefix("."), sorted(tables))


def _judge_functions(query: str) -> None:
    for name in _called(query):
        if name not in FUNCTIONS:
            raise RefusedStatementError(f"the function {name[:100]} is not let through")


def _called(query: str) -> Iterator[str]:
    """Every name before a parenthesis, in lower case; quoted names are names too."""
    before: Token | None = None
    for token in tokenize(query, dialect=_DIALECT):
        if token.token_type is TokenType.L_PAREN and before is not None:
            name = before.text.lower()
            is_quoted = before.token_type is TokenType.IDENTIFIER
            if is_quoted or (name.replace("_", "a").isalnum() and name not in _NO_FUNCTIONS):
                yield name
        before = token


def _plain(error: SqlglotError) -> str:
    """The first line of what sqlglot says, without its marks for a terminal."""
    return str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")[:300]
