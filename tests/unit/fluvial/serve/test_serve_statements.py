"""Which statements of strangers are let through, and as what."""

import pytest

from fluvial.serve.errors import NoTableError, RefusedStatementError
from fluvial.serve.statements import CHARACTERS_MAX, judged

TABLES = ("history.orders", "state.customers")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM state.customers VERSION AS OF 3 AS c WHERE a IN (1, 2) AND b LIKE 'x\\'y%'",
        "SELECT * FROM state.customers TIMESTAMP AS OF '2026-01-01'",
        "WITH a AS (SELECT 1 AS x), b(y) AS (SELECT x FROM a) SELECT * FROM b JOIN history.orders AS o ON (o.n = b.y)",
        "(SELECT 1) UNION ALL (SELECT 2) ORDER BY 1 LIMIT 3",
        "SELECT sum(a) FILTER(WHERE b > 1) OVER (PARTITION BY b ORDER BY c) FROM state.customers GROUP BY CUBE (c)",
        "SELECT CASE WHEN (a) THEN (b) END, CAST(a AS DECIMAL(3, 1)), transform(l, x -> x + 1) FROM history.orders",
        "SELECT count(*) FROM history.orders LATERAL VIEW explode(items) t AS item WHERE NOT (a) AND EXISTS(SELECT 1)",
        "SELECT * FROM VALUES (1, 2), (3, 4) AS t(a, b)",
        "SELECT a.* EXCEPT (b) FROM state.customers AS a",
    ],
)
def test_queries_of_tables_are_let_through_as_they_are(statement):
    assert judged(statement, TABLES) == statement


@pytest.mark.parametrize(
    ("statement", "asked"),
    [
        ("select 1 -- '\n;", "SELECT 1"),
        ("select /* a /* b */ */ Count(*) from state.customers", "SELECT count(*) FROM state.customers"),
        ('select "it\'s"', "SELECT 'it\\'s'"),
        ("from state.customers select a", "SELECT a FROM state.customers"),
        ("select `a``b` from state.customers", "SELECT `a``b` FROM state.customers"),
        ("select a from `Spark_Catalog`.state.customers", "SELECT a FROM state.customers"),
    ],
)
def test_what_is_asked_is_written_again_from_what_was_read(statement, asked):
    assert judged(statement, TABLES) == asked


@pytest.mark.parametrize(
    "statement",
    [
        "",
        ";",
        "select 1; select 2",
        "insert into state.customers select 1",
        "delete from state.customers",
        "merge into state.customers using history.orders on true when matched then delete",
        "create table x location '/var/x' as select 1",
        "create or replace temporary view v as select 1",
        "drop table state.customers",
        "set spark.sql.ansi.enabled = false",
        "describe state.customers",
        "show tables",
        "explain select 1",
        "cache table state.customers",
        "add jar 'x.jar'",
        "with a as (insert into state.customers select 1) select 1",
        "select * from state.customers union select 1 from range(1)",
        "select * from range(100000000000)",
        "select * from read_files('/etc/passwd')",
        "select * from identifier('text./etc/passwd')",
        "select * from state.customers tablesample (10 percent)",
        "select * from state.customers pivot (sum(a) for b in (1, 2))",
        "select * from state.customers for update",
        "select transform(a) using 'cat /etc/passwd' as (b) from state.customers",
        "select /*+ broadcast(c) */ * from state.customers c",
        "select /*+ broadcast(c) */ 1 from (select * from state.customers c)",
        "with `/etc/passwd` as (select 1) select * from `/etc/passwd`",
        "select 1 from (with `x.parquet` as (select 1) select 1) join `x.parquet`",
        "with recursive t(n) as (select 1 union all select n + 1 from t) select * from t",
        "select ${x}",
        "select :x",
        "select ?",
        "select reflect('java.lang.System', 'exit', 1)",
        "select `reflect`('java.lang.System', 'exit', 1)",
        "select REFLECT /* */ ('java.lang.System', 'exit', 1)",
        "with reflect(n) as (select 1) select reflect('java.lang.System', 'exit', n) from reflect",
        "select 1 as reflect from (select java_method('java.lang.System', 'exit', 1)) as reflect(java_method)",
        "select a from state.customers order by try_reflect('java.lang.System', 'exit', 1)",
        "select input_file_name() from state.customers",
        "select current_user",
        "select current_user()",
        "select version()",
        "select my_catalog.my_function(1)",
        "select nothing_known(1)",
        "select * from state.customers where a = (select reflect('a', 'b'))",
        "select " + "(" * 5_000 + "1" + ")" * 5_000,
        "select " + "- " * 3_000 + "1",
        "select 1" + " + 1" * 4_000,
        "select " + "case when true then " * 1_000 + "1" + " end" * 1_000,
        "select * from " + "(select * from " * 500 + "state.customers" + ")" * 500,
        "select " + "x" * CHARACTERS_MAX,
        "select '",
        "select \0",
        "select `",
        "/*",
    ],
)
def test_everything_else_is_refused_in_a_line(statement):
    with pytest.raises(RefusedStatementError) as refused:
        judged(statement, TABLES)
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "statement",
    [
        "select " + "struct(" * 10 + "1" + ")" * 10,
        "select " + "decimal(" * 10 + "1" + ")" * 10,
        "select * from state.customers" + " join state.customers" * 12,
    ],
)
def test_what_doubles_the_parsers_work_with_each_word_is_given_up(statement):
    with pytest.raises(RefusedStatementError, match="takes too long to read"):
        judged(statement, TABLES)


@pytest.mark.parametrize(
    "statement",
    [
        "select * from text.`/etc/passwd`",
        "select * from delta.`/etc`",
        "select * from parquet.`s3://bucket/x`",
        "select * from customers",
        "select * from other.state.customers",
        "select * from spark_catalog.text.`/etc/passwd`",
        "select * from spark_catalog.customers",
        "select * from spark_catalog.spark_catalog.state.customers",
        "select * from `state.customers`",
        "select * from state.customers a join json.`/x` b on true",
        "select (select max(x) from csv.`/x`)",
        "with customers as (select 1) select * from state.nothing",
    ],
)
def test_only_tables_of_the_warehouse_are_read(statement):
    with pytest.raises((NoTableError, RefusedStatementError)):
        judged(statement, TABLES)
