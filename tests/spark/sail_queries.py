# ruff: noqa: E501
"""
Tables and queries on which Sail's answers are held to Spark's: by hand, at the edges of types, and drawn by dice.
"""

import random
from collections.abc import Iterator
from typing import Any

from fluvial.spark.warehouse import Warehouse

ORDERS = """
    select concat('o', id) order_id, concat('c', id % 17) customer, cast(id * 1.37 as decimal(12, 2)) amount,
           cast(id as double) / 7 weight, cast(id % 5 as int) kind, timestamp_seconds(1700000000 + id * 3571) ordered_at,
           date_add(date'2024-01-28', cast(id % 90 as int)) day, if(id % 6 = 0, null, concat('Ä ', id % 4)) note,
           array(cast(id % 3 as int), null, cast(id as int)) numbers, map('k', id % 4, 'l', id) pairs,
           named_struct('city', concat('city ', id % 8), 'zip', cast(id % 10 as int)) place, id % 2 = 0 paid,
           _partition, _offset
    from (select id, cast(id % 3 as int) _partition, id _offset from range(120))
"""
CUSTOMERS = """
    select concat('c', id) customer, cast(id as int) orders, cast(id * 2.5 as decimal(14, 2)) spent, id % 4 tier,
           timestamp_seconds(1700000000 + id) since, named_struct('n', id) _fold
    from range(40)
"""
EDGES = """
    select * from values
        (1, cast(127 as tinyint), cast(32767 as smallint), 2147483647, 9223372036854775807, cast('NaN' as float),
         cast('Infinity' as double), cast('99999999999999999999.999999999999999999' as decimal(38, 18)), '', X'', date'9999-12-31',
         timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'9999-12-31 23:59:59.999999', true),
        (2, cast(-128 as tinyint), cast(-32768 as smallint), -2147483648, -9223372036854775808, cast(-0.0 as float),
         cast(-0.0 as double), cast('-99999999999999999999.999999999999999999' as decimal(38, 18)), ' a ', X'00ff', date'1000-01-01',
         timestamp'1000-01-01 00:00:00', timestamp_ntz'1000-01-01 00:00:00', false),
        (3, cast(0 as tinyint), cast(0 as smallint), 0, 0L, cast(1.17549435e-38 as float), cast(4.9e-324 as double),
         cast(0 as decimal(38, 18)), 'ẞ𝄞e\\u0301', X'f09d849e', date'1582-10-10', timestamp'1582-10-10 12:00:00',
         timestamp_ntz'1969-12-31 23:59:59.999999', true),
        (4, null, null, null, null, null, null, null, null, null, null, null, null, null)
        as t(id, tiny, small, whole, big, single, double, dec, text, bytes, day, at, local, flag)
"""
LINES = """
    select id % 50 orderkey, id % 7 suppkey, cast(1 + id % 50 as decimal(12, 2)) quantity,
           cast(900 + (id * 7919) % 9000 as decimal(12, 2)) price, cast((id % 11) / 100 as decimal(4, 2)) discount,
           cast((id % 9) / 100 as decimal(4, 2)) tax, substr('ARN', 1 + cast(id % 3 as int), 1) returned,
           substr('OF', 1 + cast(id % 2 as int), 1) status, date_add(date'1995-01-01', cast(id % 700 as int)) shipped
    from range(400)
"""


def make_tables(spark: Any, root: str) -> None:
    """Write the tables below a warehouse: with deletion vectors, with columns renamed, dropped and added."""
    at = Warehouse.at(root).path
    vectors = {"delta.enableDeletionVectors": "true"}
    _write(spark, ORDERS, at("history.orders"), {})
    _write(spark, EDGES, at("history.edges"), {})
    _write(spark, LINES, at("marts.lines"), {})
    customers = at("state.customers")
    _write(spark, CUSTOMERS, customers, vectors)
    spark.sql(f"delete from delta.`{customers}` where orders % 9 = 5")
    spark.sql(f"update delta.`{customers}` set spent = spent + 1, tier = null where orders % 7 = 3")
    mapped = at("marts.mapped")
    _write(spark, "select id, concat('x', id) `a b`, id * 2 gone, id % 3 part from range(30)", mapped,
           {"delta.columnMapping.mode": "name"}, partition="part")  # fmt: skip
    spark.sql(f"alter table delta.`{mapped}` rename column id to key")
    spark.sql(f"alter table delta.`{mapped}` drop column gone")
    spark.sql(f"alter table delta.`{mapped}` add columns (later map<string, array<int>>)")
    spark.sql(f"insert into delta.`{mapped}` (key, `a b`, part, later) values (99, 'y', 1, map('k', array(1, null)))")


def _write(spark: Any, query: str, path: str, properties: dict[str, str], partition: str | None = None) -> None:
    writer = spark.sql(query).coalesce(1).write.format("delta").options(**properties)
    (writer if partition is None else writer.partitionBy(partition)).save(path)


BY_HAND = """
select * from state.customers
select * from history.orders
select * from marts.mapped
select key, `a b`, later['k'][0] v from marts.mapped where part = 1 and later is not null
select * from history.edges
select count(*), count(note), count(distinct note), sum(amount), avg(amount), min(day), max(ordered_at) from history.orders
select customer, count(*) n, sum(amount) total, avg(weight) w from history.orders group by customer having count(*) > 6
select kind, paid, sum(amount) from history.orders group by rollup(kind, paid)
select kind, paid, grouping(kind) g, count(*) from history.orders group by cube(kind, paid)
select kind, paid, count(*) from history.orders group by grouping sets ((kind), (paid), ())
select c.customer, c.spent, o.total from state.customers c left join (select customer, sum(amount) total from history.orders group by 1) o on o.customer = c.customer
select c.customer from state.customers c left anti join history.orders o on o.customer = c.customer
select c.customer from state.customers c left semi join history.orders o using (customer)
select * from state.customers c full outer join (select 'c1' customer, 1 x union all select 'zz', 2) o on c.customer = o.customer where c.tier is null
select customer, amount, row_number() over (partition by customer order by _offset) r, sum(amount) over (partition by customer order by _offset) s, lag(amount, 1) over (partition by customer order by _offset) l from history.orders
select order_id, rank() over (order by kind) r, dense_rank() over (order by kind) d, ntile(4) over (order by _offset) n, percent_rank() over (order by kind) p, cume_dist() over (order by kind) c from history.orders
select order_id, first_value(amount) over (partition by kind order by _offset rows between 2 preceding and 1 following) f, avg(amount) over (order by _offset rows between unbounded preceding and current row) a from history.orders
select customer, max_by(order_id, _offset) last, min_by(order_id, _offset) first from history.orders group by customer
select place.city, size(numbers), numbers[1], pairs['k'], element_at(pairs, 'l') from history.orders
select order_id, n from history.orders lateral view explode(numbers) e as n where n is not null
select order_id, pos, n from history.orders lateral view posexplode(numbers) e as pos, n
select transform(numbers, x -> x + 1) t, filter(numbers, x -> x is not null) f, exists(numbers, x -> x = 2) e, aggregate(array(1, 2), 0, (a, x) -> a + x) g from history.orders
select year(ordered_at), month(ordered_at), day(ordered_at), hour(ordered_at), dayofweek(day), weekofyear(day), quarter(day) from history.orders
select date_trunc('hour', ordered_at) h, count(*) from history.orders group by 1
select trunc(day, 'month') m, last_day(day), add_months(day, 1), months_between(day, date'2024-01-01'), datediff(day, date'2024-01-01') from history.orders
select date_format(ordered_at, 'yyyy-MM-dd HH:mm') f, unix_timestamp(ordered_at) u, to_date('2024-02-30', 'yyyy-MM-dd') is null n from history.orders where false
select date_format(ordered_at, 'yyyy-MM-dd HH:mm:ss') f, unix_timestamp(ordered_at) u, from_unixtime(0) z from history.orders
select ordered_at + interval 1 day, ordered_at - interval 90 minutes, day + interval 1 month, ordered_at - timestamp'2023-11-14 00:00:00' from history.orders
select window.start, count(*) from history.orders group by window(ordered_at, '1 day')
select upper(note), lower(note), length(note), substr(note, 2, 3), trim(note), replace(note, 'Ä', 'A'), reverse(note), initcap(note) from history.orders
select concat_ws('-', order_id, note, customer), lpad(order_id, 6, '0'), rpad(order_id, 3, 'x'), split(customer, 'c'), instr(note, ' ') from history.orders
select note like 'Ä%', note rlike '[0-2]$', regexp_extract(order_id, '(\\\\d+)', 1), regexp_replace(order_id, 'o', 'O') from history.orders
select order_id ilike 'O1%', startswith(order_id, 'o'), contains(order_id, '1'), position('1', order_id) from history.orders
select amount * 3, amount / 3, amount + weight, amount % 7, -amount, amount div 2, round(amount, 1), bround(amount, 1), floor(amount), ceil(weight) from history.orders
select cast(amount as int), cast(weight as int), cast(amount as string), cast(weight as string), cast(paid as int), cast(kind as boolean) from history.orders
select cast(ordered_at as string), cast(day as string), cast(ordered_at as date), cast(day as timestamp), cast(ordered_at as long) from history.orders
select sqrt(weight), exp(kind), ln(weight + 1), pow(kind, 2), abs(-weight), sign(amount), greatest(kind, 2), least(kind, 2, null) from history.orders
select coalesce(note, 'none'), nvl(note, ''), nullif(kind, 1), if(paid, 1, 0), case kind when 1 then 'a' when 2 then 'b' end from history.orders
select collect_set(kind), sort_array(collect_list(kind)) from history.orders where kind < 3 group by customer having customer = 'c1'
select sort_array(collect_set(note)), array_sort(array(3, 1, null, 2)), array_contains(array(1, 2), 2), array_distinct(array(1, 1, 2)), flatten(array(array(1), array(2))) from history.orders group by kind
select stddev(weight), variance(weight), corr(weight, kind), skewness(weight), kurtosis(weight), covar_pop(weight, kind) from history.orders
select percentile(kind, 0.5), median(weight), mode(kind), approx_count_distinct(customer) from history.orders
select bool_and(paid), bool_or(paid), every(paid), count_if(paid), any_value(1), sum(distinct kind) from history.orders
select customer, amount from history.orders order by amount desc, customer limit 7
select customer, amount from history.orders order by note nulls last, amount limit 5 offset 3
select note, count(*) from history.orders group by note order by note
select distinct kind, paid from history.orders
select customer from state.customers intersect select customer from history.orders
select customer from state.customers except select customer from history.orders
select kind from history.orders where kind < 2 union select tier from state.customers
with recent as (select * from history.orders where _offset > 60), n as (select count(*) n from recent) select r.order_id, n.n from recent r cross join n
select * from (select kind, paid, amount from history.orders) pivot (sum(amount) for paid in (true, false))
select * from history.orders where amount > (select avg(amount) from history.orders)
select * from state.customers c where exists (select 1 from history.orders o where o.customer = c.customer and o.amount > c.spent)
select customer, (select max(amount) from history.orders o where o.customer = c.customer) m from state.customers c
select * from state.customers where customer in ('c1', 'c2', null)
select * from state.customers where tier is not distinct from null
select md5(customer), sha2(customer, 256), crc32(customer), base64(cast(customer as binary)), hex(customer), hash(customer), xxhash64(customer) from state.customers
select hash(kind, note, amount, ordered_at), xxhash64(kind, day, weight) from history.orders
select to_json(place), to_json(named_struct('a', amount, 'b', ordered_at, 'c', numbers)) from history.orders
select get_json_object('{"a": {"b": [1, 2]}}', '$.a.b[1]'), from_json('{"a": 1}', 'a int') from history.orders limit 1
select map_keys(pairs), map_values(pairs), map_entries(pairs), cardinality(pairs) from history.orders
select struct(kind, paid), named_struct('a', 1), array(1, 2)[0], sequence(1, 5), sequence(date'2024-01-01', date'2024-01-03') from history.orders limit 1
select 1/4, 1 div 4, 5 % 3, -5 % 3, pmod(-5, 3), 7 / 2.0, 1.10 + 2.2, 1e3, 10L, 1.5f, 2.5d
select 0.1 + 0.2, 0.1d + 0.2d, cast(1 as decimal(38, 0)) / 3, cast(2 as decimal(20, 10)) * cast(3 as decimal(20, 10))
select null, null + 1, null and false, null or true, not null, nullif(1, 1)
select 'a' || 'b', 'a' = 'A', 'a' < 'b', ' a' = 'a', '1' = 1, '1.0' = 1.0
select current_date() = current_date(), current_timestamp() is not null, now() is not null
select try_divide(1, 0), try_cast('x' as int), try_add(2147483647, 1), try_to_number('x', '999')
select interval 1 day, interval '1 2:03:04' day to second, interval 3 month + date'2024-01-31'
select cast('2024-01-01T00:00:00Z' as timestamp), timestamp'2024-03-31 02:30:00 Europe/Berlin', to_timestamp('01/02/2024', 'dd/MM/yyyy')
select from_utc_timestamp(timestamp'2024-01-01 00:00:00', 'Asia/Tokyo'), to_utc_timestamp(timestamp'2024-07-01 00:00:00', 'Europe/Bern')
select tiny + small, whole + 0L, big, -single, double * 2, single = single, double from history.edges
select sum(double), avg(single), max(double), min(single), max(dec), min(text), max(bytes), min(day), max(at) from history.edges
select id from history.edges where double > 1e308 or isnan(single)
select single, count(*) from history.edges group by single
select double, row_number() over (order by double, id) from history.edges
select id, dec, cast(dec as string), cast(dec as double), round(dec, 2) from history.edges
select length(text), upper(text), char_length(text), octet_length(text), bit_length(text), ascii(text), reverse(text) from history.edges
select id, cast(at as string), year(at), date_trunc('day', at), cast(local as string), day, cast(day as string), weekofyear(day) from history.edges
select cast(single as string), cast(double as string), cast(big as double), cast(bytes as string), hex(bytes) from history.edges where id > 1
select text || cast(id as string), concat(bytes, bytes), trim(text), flag and true from history.edges
select stack(2, 1, 'a', 2, 'b')
select inline(array(struct(1, 'a'), struct(2, 'b')))
select explode(map('a', 1, 'b', 2))
values (1, 'a'), (2, null)
from history.orders select kind, count(*) group by kind
table state.customers
select returned, status, sum(quantity), sum(price), sum(price * (1 - discount)), sum(price * (1 - discount) * (1 + tax)), avg(quantity), avg(price), avg(discount), count(*) from marts.lines where shipped <= date'1996-09-02' - interval 90 days group by returned, status order by returned, status
select sum(price * discount) revenue from marts.lines where shipped >= date'1995-01-01' and shipped < date'1995-01-01' + interval 1 year and discount between 0.05 and 0.07 and quantity < 24
select orderkey, sum(quantity) q from marts.lines group by orderkey having sum(quantity) > 210 order by q desc, orderkey limit 10
select l.suppkey, extract(year from l.shipped) y, sum(l.price * (1 - l.discount)) v from marts.lines l join history.orders o on l.orderkey = o._offset group by 1, 2 order by 1, 2
select 100.00 * sum(case when returned = 'A' then price * (1 - discount) else 0 end) / sum(price * (1 - discount)) from marts.lines
with r as (select suppkey s, sum(price * (1 - discount)) t from marts.lines group by suppkey) select s, t from r where t = (select max(t) from r)
select sum(price) / 7.0 from marts.lines l where quantity < (select 0.2 * avg(quantity) from marts.lines m where m.suppkey = l.suppkey)
select o.customer, count(distinct l.suppkey) from history.orders o join marts.lines l on l.orderkey = o._offset and l.quantity > 10 group by o.customer
select * from state.customers version as of 0 where orders < 6
select a.customer, a.spent old, b.spent new from state.customers version as of 1 a join state.customers b using (customer) where a.spent <> b.spent
select customer, spent from state.customers where spent between 10 and 20 and not (tier = 1)
select count(*) from state.customers a, history.orders b where a.customer = b.customer
select kind, listagg(customer, ',') within group (order by customer) from history.orders where _offset < 10 group by kind
select string_agg(customer) from history.orders where _offset = 1
select customer as `a b`, `orders` from state.customers as `c d` where `c d`.orders = 3
select o.* from history.orders o where o.place.city = 'city 3' and array_contains(o.numbers, 3)
select count(*) filter (where paid) p, sum(amount) filter (where kind = 1) s from history.orders
select bit_and(kind), bit_or(kind), kind & 1, kind | 8, kind ^ 3, shiftleft(kind, 2) from history.orders group by kind
select width_bucket(weight, 0, 20, 4), conv('ff', 16, 10), bin(kind), factorial(kind), format_number(amount, 1), levenshtein(order_id, customer), soundex(customer) from history.orders
select overlay('abcdef' placing 'X' from 2 for 3), substring_index('a.b.c', '.', 2), translate('abc', 'ab', 'xy'), repeat('a', 3), space(2), chr(65), elt(2, 'a', 'b')
select make_date(2024, 2, 29), make_timestamp(2024, 1, 2, 3, 4, 5.5), date_from_unix_date(1), unix_date(date'1970-01-02'), next_day(date'2024-01-01', 'TU'), date_part('week', date'2024-01-01')
select first(amount), last(amount), collect_list(kind) from (select * from history.orders order by _offset) where _offset < 4
select array_join(array('a', null, 'b'), ',', '-'), arrays_zip(array(1), array(2)), map_from_arrays(array('a'), array(1)), array_position(array(3, 4), 4), slice(array(1, 2, 3), 2, 2), array_except(array(1, 2), array(2))
""".strip().splitlines()
"""One query a line."""


def generated(seed: int, count: int) -> Iterator[str]:
    """Draw queries over the same tables: filters, expressions, groups, joins and windows."""
    dice = random.Random(seed)
    for _ in range(count):
        yield dice.choice((_plain, _grouped, _joined, _windowed))(dice)


_NUMBERS = ("amount", "weight", "kind", "_offset", "place.zip", "cast(kind as bigint)", "3", "2.50", "1e1")
_TEXTS = ("order_id", "customer", "note", "place.city", "'c1'", "''")
_TIMES = ("ordered_at", "cast(day as timestamp)", "timestamp'2023-12-24 18:00:00'")


def _number(dice: random.Random, depth: int = 2) -> str:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(_NUMBERS)
    one, other = _number(dice, depth - 1), _number(dice, depth - 1)
    return dice.choice(
        (
            f"({one} + {other})", f"({one} - {other})", f"({one} * {other})", f"(-{one})", f"abs({one})",
            f"({one} / nullif({other}, 0))", f"coalesce({one}, 0)", f"greatest({one}, {other})", f"round({one}, 1)",
            f"length({_text(dice, 0)})", f"if({_truth(dice, 0)}, {one}, {other})", f"year({dice.choice(_TIMES)})",
            f"cast({one} as double)", "datediff(day, date'2024-02-01')", f"floor({one})",
        )
    )  # fmt: skip


def _text(dice: random.Random, depth: int = 1) -> str:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(_TEXTS)
    one = _text(dice, depth - 1)
    return dice.choice(
        (
            f"concat({one}, {_text(dice, 0)})", f"upper({one})", f"substr({one}, 2, 3)", f"coalesce({one}, 'x')",
            f"cast({dice.choice(('amount', 'kind', 'day', 'ordered_at', 'weight', 'paid'))} as string)",
            f"replace({one}, 'c', 'd')", f"lpad({one}, 5, '*')", f"date_format({dice.choice(_TIMES)}, 'yyyy-MM')",
        )
    )  # fmt: skip


def _truth(dice: random.Random, depth: int = 1) -> str:
    if depth == 0:
        return dice.choice(("paid", "note is null", "kind = 2", "amount > 50", "customer in ('c1', 'c2', 'c3')"))
    one, other = _truth(dice, depth - 1), _truth(dice, depth - 1)
    return dice.choice(
        (
            f"({one} and {other})", f"({one} or {other})", f"(not {one})", f"({_number(dice, 1)} < {_number(dice, 1)})",
            f"({_text(dice, 0)} <= {_text(dice, 0)})", f"({_text(dice, 0)} like '%1%')",
            f"({dice.choice(_TIMES)} > {dice.choice(_TIMES)})", f"({_number(dice, 1)} between 1 and 40)",
        )
    )  # fmt: skip


def _plain(dice: random.Random) -> str:
    values = [dice.choice((_number, _text, _truth))(dice) for _ in range(3)]
    named = ", ".join(f"{value} v{at}" for at, value in enumerate(values))
    return f"select order_id, {named} from history.orders where {_truth(dice)}"


def _grouped(dice: random.Random) -> str:
    key = dice.choice(("kind", "paid", "customer", "place.city", "day", "date_trunc('month', ordered_at)", _text(dice)))
    folds = ", ".join(
        f"{dice.choice(('sum', 'avg', 'min', 'max', 'count', 'stddev'))}({_number(dice, 1)}) f{at}" for at in range(2)
    )
    return f"select {key} k, count(*) n, {folds} from history.orders where {_truth(dice)} group by 1 order by 1"


def _joined(dice: random.Random) -> str:
    kind = dice.choice(("join", "left join", "right join", "full join"))
    return (
        f"select order_id, c.customer who, tier, {_number(dice, 1).replace('customer', 'o.customer')} v "
        f"from (select * from history.orders where {_truth(dice)}) o {kind} (select customer who, tier, spent from "
        f"state.customers where tier {dice.choice(('< 3', '>= 1', 'is null', 'is not null'))}) c0 "
        f"{'on o.customer = c0.who'} left join state.customers c on c.customer = c0.who"
    )


def _windowed(dice: random.Random) -> str:
    function = dice.choice(
        ("row_number()", "rank()", f"sum({_number(dice, 1)})", f"lag({_text(dice, 0)})", f"max({_number(dice, 1)})")
    )
    part = dice.choice(("kind", "customer", "paid"))
    window = f"{function} over (partition by {part} order by _offset)"
    return f"select order_id, {window} w from history.orders where {_truth(dice)}"
