"""
Which engine a statement goes to, decided from its words; what the quick one then refuses goes to Spark as well.

The lists of what differs are kept by the differential test (`tests/spark/test_spark_sail.py`) and stand on the page
docs/decisions/0032-sail-for-queries.md.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from fluvial.query.words import Kind, Word, words_of

_QUERIES = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")
_CHANGES = ("INSERT", "MERGE", "UPDATE", "DELETE")
_SESSION = ("SET", "RESET", "USE", "CREATE", "DROP", "DECLARE", "ADD", "CACHE", "UNCACHE", "REFRESH")
_FORMATS = frozenset(
    {
        "avro",
        "binaryfile",
        "csv",
        "delta",
        "hudi",
        "iceberg",
        "image",
        "jdbc",
        "json",
        "lance",
        "libsvm",
        "orc",
        "parquet",
        "python",
        "text",
        "vortex",
        "xml",
    }
)
# What is of a process, a machine or a moment, or of how Spark names things.
_SPARKS_FUNCTIONS = frozenset(
    {
        "rand",
        "randn",
        "random",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "version",
        "current_user",
        "user",
        "session_user",
        "current_catalog",
        "current_database",
        "current_schema",
        "java_method",
        "reflect",
        "try_reflect",
        "typeof",
        "schema_of_json",
        "schema_of_csv",
        "schema_of_xml",
        "schema_of_variant",
        "schema_of_variant_agg",
        "read_files",
    }
)
# Of these Sail 0.7.2 has another answer than Spark 4.0.2, as tests/spark/test_spark_sail.py found.
_OTHER_ANSWERS = frozenset(
    {
        "bround",
        "format_number",
        "get_json_object",
        "hash",
        "histogram_numeric",
        "initcap",
        "to_csv",
        "to_json",
        "xxhash64",
    }
)
_OTHER_FIELDS = ("DOW", "DOW_ISO", "DAYOFWEEK_ISO", "EPOCH")
_SMALL_TYPES = ("TINYINT", "SMALLINT", "INT", "INTEGER", "BYTE", "SHORT")
_SMALL = re.compile(r"\b(tinyint|smallint|int)\b")
_WRITTEN_OTHERWISE = re.compile(r"\b(float|double|array|map|struct)\b")
_DOUBLE = re.compile(r"\b(float|double)\b")
_TO_TEXT = frozenset({"array_join", "char", "concat", "concat_ws", "listagg", "string", "string_agg", "varchar"})
_MEANS = frozenset({"avg", "mean", "try_avg"})
_ONE_OF_SEVERAL = frozenset({"array", "case", "coalesce", "greatest", "if", "ifnull", "iff", "least", "nvl", "nvl2"})
_EXACT_DIGITS_MAX = 38
_SPARKS_WORDS = (
    "CURRENT_USER",
    "SESSION_USER",
    "USER",
    "CURRENT_CATALOG",
    "CURRENT_DATABASE",
    "TABLESAMPLE",
    "_METADATA",
)
# Settings of Spark's that change how it works and not what it answers.
_OF_THE_WORK_ALONE = (
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.",
    "spark.sql.files.",
    "spark.sql.catalog.",
    "spark.sql.codegen.",
    "spark.sql.extensions",
    "spark.sql.warehouse.dir",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.execution.arrow.",
)


def first_word(statement: str) -> str:
    """
    The word that says what a statement does, in upper case.
    """
    words = words_of(statement)
    return words[0].text.upper() if words else ""


def is_query(statement: str) -> bool:
    """
    Whether a statement reads and changes nothing.
    """
    words = words_of(statement)
    if not words or words[0].text.upper() not in _QUERIES:
        return False
    depth = 0
    for word in words:
        depth += {"(": 1, ")": -1}.get(word.text, 0)
        if depth == 0 and word.kind is Kind.NAME and word.text.upper() in _CHANGES:
            return False
    return True


def changes_session(statement: str) -> bool:
    """
    Whether what comes after a statement depends on the session that it ran in.
    """
    return first_word(statement) in _SESSION


def why_spark(statement: str) -> str | None:
    """
    Why a statement is Spark's, as the rest of a sentence that begins with it; None where Sail may answer.
    """
    if not is_query(statement):
        return f"{first_word(statement)} is a statement of Spark's"
    words = [*words_of(statement), None, None]
    for word, after, second in zip(words, words[1:], words[2:], strict=False):
        reason = None if word is None or not word.is_name else _reason(word, after, second)
        if reason is not None:
            return reason
    return None


def why_spark_settings(conf: Mapping[str, str]) -> str | None:
    """
    Why the settings of a session want Spark; None where they say nothing of its answers.
    """
    meant = next((key for key in conf if key.startswith("spark.sql.") and not key.startswith(_OF_THE_WORK_ALONE)), None)
    return None if meant is None else f"{meant} is a setting of Spark's"


def _reason(word: Word, after: Word | None, second: Word | None) -> str | None:
    name, mark = word.name.lower(), after.text if after is not None else ""
    if mark == "." and second is not None and second.kind is Kind.QUOTED:
        is_path = name in _FORMATS or any(each in second.name for each in "/:\\")
        return f"{word.text}.{second.text} is a path" if is_path else None
    is_function = mark == "(" and (name in _SPARKS_FUNCTIONS or name in _OTHER_ANSWERS)
    if is_function or word.is_keyword(*_SPARKS_WORDS) or word.is_keyword(*_OTHER_FIELDS):
        return f"{word.text} is answered by Spark alone"
    return None


def why_spark_types(statement: str, columns: Iterable[tuple[str, str]]) -> str | None:
    """
    Why what a query does with its values is Spark's; `columns` are its tables' columns, with Spark's names of types.

    Sail wraps an integer that overflows where Spark refuses, gives a quotient of decimals another scale, and writes
    doubles and nested values otherwise as text. Which expression has which type is not known here, so a query is
    Spark's as soon as it has such an operator and names a column, or a type, of such a kind.
    """
    words = words_of(statement)
    names = {word.name.lower() for word in words if word.is_name}
    named = " ".join(kind for name, kind in columns if name.lower() in names)
    operators = set(_operators(words))
    reason = None
    if operators & set("+-*") and (_SMALL.search(named) or any(word.is_keyword(*_SMALL_TYPES) for word in words)):
        reason = "an integer may overflow, which Sail does not notice"
    elif "*" in operators and "bigint" in named:
        reason = "a bigint may overflow, which Sail does not notice"
    elif "/" in operators and _has_decimal(named, words):
        reason = "Sail rounds quotients of decimals otherwise"
    elif names & _ONE_OF_SEVERAL and _has_decimal(named, words) and _has_double(named, words):
        reason = "Sail makes a decimal of a double beside a decimal"
    elif names & _MEANS and "decimal" in named:
        reason = "Sail cuts the last digit of a mean of decimals"
    elif ("|" in operators or names & _TO_TEXT) and _WRITTEN_OTHERWISE.search(named):
        reason = "Sail writes doubles and nested values otherwise as text"
    return reason


def why_spark_answer(statement: str, kinds: Iterable[str]) -> str | None:
    """
    Why an answer with columns of these types is Spark's to give: decimals that arithmetic has filled.
    """
    words = words_of(statement)
    full = any(kind.startswith(f"decimal({_EXACT_DIGITS_MAX},") for kind in kinds)
    if full and (set(_operators(words)) or any(word.is_keyword("ROUND") for word in words)):
        return f"Sail rounds decimals of {_EXACT_DIGITS_MAX} digits otherwise"
    return None


def _operators(words: Sequence[Word]) -> Iterator[str]:
    """The marks that stand between two values; a `*` for all columns is none."""
    for before, word in pairwise(words):
        if word.kind is Kind.MARK and word.text in "+-*/%|":
            is_value = before.kind is not Kind.MARK or before.text in ")]"
            if is_value and not before.is_keyword("SELECT", "DISTINCT", "ALL"):
                yield word.text


def _has_decimal(named: str, words: Sequence[Word]) -> bool:
    return "decimal" in named or any(_is_decimal(word) for word in words)


def _has_double(named: str, words: Sequence[Word]) -> bool:
    return bool(_DOUBLE.search(named)) or any(
        (word.kind is Kind.NUMBER and bool(re.search(r"[eEdDfF]", word.text))) or word.is_keyword("DOUBLE", "FLOAT")
        for word in words
    )


def _is_decimal(word: Word) -> bool:
    number = word.kind is Kind.NUMBER and "." in word.text and not re.search(r"[eEdDfF]", word.text)
    return number or word.is_keyword("DECIMAL", "NUMERIC", "DEC")
