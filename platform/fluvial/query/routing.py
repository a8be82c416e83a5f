"""
Which engine a statement goes to, decided from its words; what the quick one then refuses goes to Spark as well.

The lists of what differs are kept by the differential test (`tests/spark/test_spark_sail.py`) and stand on the page
docs/decisions/0032-sail-for-queries.md.
"""

from collections.abc import Mapping

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
    name = word.name.lower()
    if after is not None and after.text == "." and second is not None and second.kind is Kind.QUOTED:
        if name in _FORMATS or any(mark in second.name for mark in "/:\\"):
            return f"{word.text}.{second.text} is a path"
    elif (after is not None and after.text == "(" and name in _SPARKS_FUNCTIONS) or word.is_keyword(*_SPARKS_WORDS):
        return f"{word.text} is answered by Spark alone"
    return None
