"""
Nexmark's queries as tables that are kept up to date, each with the batch query in SQL that its answer must equal.

The SQL follows that of github.com/nexmark/nexmark in Spark's dialect. Answers have the columns there and, where these
do not name it, the key of the table as well. Otherwise than there, a bid on the edge of two windows is in the second
one alone (q7), a tie between winning bids goes to the lower bidder (q9), and a mean is no whole number (q4).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from fluvial.tables import Pipeline, aggregate, count, hopping, mean, pipeline, session, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERSON, AUCTION, BID, SIDE_INPUT = "history.person", "history.auction", "history.bid", "history.side_input"
_DURING = "bid.dateTime BETWEEN auction.dateTime AND auction.expires"
_WINDOW = tumbling("dateTime", "10 seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """
    One query: `marts`, the last of which has the answer, and the batch query `sql` over the histories' names.
    """

    marts: tuple[Pipeline, ...]
    sql: str


@pipeline(name="q0", inputs=[BID])
def q0(bid: "DataFrame") -> "DataFrame":
    """Every bid."""
    return bid.select("auction", "bidder", "price", "dateTime", "extra")


@pipeline(name="q1", inputs=[BID])
def q1(bid: "DataFrame") -> "DataFrame":
    """Prices in euros."""
    euros = "CAST(0.908 * price AS DECIMAL(23, 3)) AS price"
    return bid.selectExpr("auction", "bidder", euros, "dateTime", "extra")


@pipeline(name="q2", inputs=[BID])
def q2(bid: "DataFrame") -> "DataFrame":
    """Bids on some auctions."""
    return bid.where("mod(auction, 123) = 0").select("auction", "price")


@pipeline(name="q3", inputs={AUCTION: "seller", PERSON: "id"}, key="seller")
def q3(auction: "DataFrame", person: "DataFrame") -> "DataFrame":
    """Who sells in a category in three states."""
    sold = auction.where("category = 10").select("seller", "id")
    near = person.where("state IN ('OR', 'ID', 'CA')").selectExpr("id AS seller", "name", "city", "state")
    return sold.join(near, "seller").select("seller", "name", "city", "state", "id")


@pipeline(name="q4_final", inputs={AUCTION: "id", BID: "auction"}, key="id")
def q4_final(auction: "DataFrame", bid: "DataFrame") -> "DataFrame":
    """The highest bid of each auction while it was open."""
    from pyspark.sql.functions import max as greatest

    return _bids_on(auction, bid).where(_DURING).groupBy("id", "category").agg(greatest("price").alias("final"))


q4 = aggregate("marts.q4_final", name="q4", by="category", fields={"final": mean("final")})

q5_counts = aggregate(
    BID, name="q5_counts", by="auction", fields={"num": count()}, window=hopping("dateTime", "10 seconds", "2 seconds")
)


@pipeline(name="q5", inputs={"marts.q5_counts": "window_start"}, key="starttime")
def q5(counts: "DataFrame") -> "DataFrame":
    """The auctions with the most bids of each window."""
    from pyspark.sql import Window
    from pyspark.sql.functions import max as greatest

    most = greatest("num").over(Window.partitionBy("starttime"))
    named = counts.selectExpr("window_start AS starttime", "auction", "num")
    return named.withColumn("most", most).where("num = most").drop("most")


@pipeline(name="q7", inputs={BID: ()}, windows={BID: _WINDOW})
def q7(bid: "DataFrame") -> "DataFrame":
    """The highest bids of each window."""
    from pyspark.sql import Window
    from pyspark.sql.functions import max as greatest

    most = greatest("price").over(Window.partitionBy("window_start"))
    highest = bid.withColumn("most", most).where("price = most")
    return highest.select("window_start", "auction", "price", "bidder", "dateTime", "extra")


@pipeline(
    name="q8",
    inputs={PERSON: "id", AUCTION: "seller"},
    key="id",
    windows={PERSON: _WINDOW, AUCTION: _WINDOW},
)
def q8(person: "DataFrame", auction: "DataFrame") -> "DataFrame":
    """Persons who opened an auction in the window in which they came."""
    came = person.select("id", "name", "window_start").distinct()
    opened = auction.selectExpr("seller AS id", "window_start").distinct()
    return came.join(opened, ["id", "window_start"])


@pipeline(name="q9", inputs={AUCTION: "id", BID: "auction"}, key="id")
def q9(auction: "DataFrame", bid: "DataFrame") -> "DataFrame":
    """Each auction with the bid that won it."""
    from pyspark.sql import Window
    from pyspark.sql.functions import expr, row_number

    order = [expr("price").desc(), *map(expr, ("bid_dateTime", "bidder", "bid_extra"))]
    pairs = _bids_on(auction, bid).where(_DURING).selectExpr(
        *("auction.id", "itemName", "description", "initialBid", "reserve", "auction.dateTime", "expires", "seller"),
        *("category", "auction.extra", "bid.auction", "bidder", "price", "bid.dateTime AS bid_dateTime"),
        "bid.extra AS bid_extra",
    )  # fmt: skip
    place = row_number().over(Window.partitionBy("id").orderBy(*order))
    return pairs.withColumn("place", place).where("place = 1").drop("place")


q11 = aggregate(BID, name="q11", by="bidder", fields={"bid_count": count()}, window=session("dateTime", "10 seconds"))


@pipeline(name="q13", inputs=[BID, SIDE_INPUT], pinned={SIDE_INPUT: 0})
def q13(bid: "DataFrame", side_input: "DataFrame") -> "DataFrame":
    """Bids with a value from a table that does not change."""
    side = side_input.selectExpr("key", "value")
    found = bid.selectExpr("*", "mod(auction, 10000) AS key").join(side, "key")
    return found.select("auction", "bidder", "price", "dateTime", "value")


@pipeline(name="q14", inputs=[BID])
def q14(bid: "DataFrame") -> "DataFrame":
    """Dear bids with the time of day and the number of a letter."""
    hour = "hour(dateTime)"
    return bid.where("0.908 * price > 1000000 AND 0.908 * price < 50000000").selectExpr(
        "auction",
        "bidder",
        "CAST(0.908 * price AS DECIMAL(23, 3)) AS price",
        f"CASE WHEN {hour} BETWEEN 8 AND 18 THEN 'dayTime' WHEN {hour} <= 6 OR {hour} >= 20 THEN 'nightTime' "
        "ELSE 'otherTime' END AS bidTimeType",
        "dateTime",
        "extra",
        "CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts",
    )


@pipeline(name="q20", inputs={BID: "auction", AUCTION: "id"}, key="auction")
def q20(bid: "DataFrame", auction: "DataFrame") -> "DataFrame":
    """Bids with the auction that they are on, in one category."""
    return _bids_on(auction.where("category = 10"), bid).selectExpr(
        *("bid.auction", "bidder", "price", "channel", "url", "bid.dateTime AS bid_dateTime", "bid.extra AS bid_extra"),
        *("itemName", "description", "initialBid", "reserve", "auction.dateTime AS auction_dateTime", "expires"),
        *("seller", "category", "auction.extra AS auction_extra"),
    )


def _bids_on(auction: "DataFrame", bid: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import expr

    return auction.alias("auction").join(bid.alias("bid"), expr("auction.id = bid.auction"))


_COUNTS = """SELECT auction, count(*) AS num, window.start AS starttime FROM {bid}
    GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')"""

QUERIES: Mapping[str, Query] = MappingProxyType(
    {
        "q0": Query(marts=(q0,), sql="SELECT auction, bidder, price, dateTime, extra FROM {bid}"),
        "q1": Query(
            marts=(q1,),
            sql="SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM {bid}",
        ),
        "q2": Query(marts=(q2,), sql="SELECT auction, price FROM {bid} WHERE MOD(auction, 123) = 0"),
        "q3": Query(
            marts=(q3,),
            sql="""SELECT A.seller, P.name, P.city, P.state, A.id FROM {auction} AS A
                INNER JOIN {person} AS P ON A.seller = P.id
                WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
        ),
        "q4": Query(
            marts=(q4_final, q4),
            sql="""SELECT Q.category, AVG(Q.final) AS final FROM (
                    SELECT MAX(B.price) AS final, A.category FROM {auction} A, {bid} B
                    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
                    GROUP BY A.id, A.category
                ) Q GROUP BY Q.category""",
        ),
        "q5": Query(
            marts=(q5_counts, q5),
            sql=f"""SELECT AuctionBids.starttime, AuctionBids.auction, AuctionBids.num FROM ({_COUNTS}) AS AuctionBids
                JOIN (SELECT max(num) AS maxn, starttime FROM ({_COUNTS}) GROUP BY starttime) AS MaxBids
                ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.num >= MaxBids.maxn""",
        ),
        "q7": Query(
            marts=(q7,),
            sql="""SELECT B1.start AS window_start, B.auction, B.price, B.bidder, B.dateTime, B.extra FROM {bid} B
                JOIN (
                    SELECT MAX(price) AS maxprice, window.start AS start, window.end AS end FROM {bid}
                    GROUP BY window(dateTime, '10 seconds')
                ) B1 ON B.price = B1.maxprice AND B.dateTime >= B1.start AND B.dateTime < B1.end""",
        ),
        "q8": Query(
            marts=(q8,),
            sql="""SELECT P.id, P.name, P.starttime AS window_start FROM (
                    SELECT id, name, window.start AS starttime FROM {person}
                    GROUP BY id, name, window(dateTime, '10 seconds')
                ) P JOIN (
                    SELECT seller, window.start AS starttime FROM {auction}
                    GROUP BY seller, window(dateTime, '10 seconds')
                ) A ON P.id = A.seller AND P.starttime = A.starttime""",
        ),
        "q9": Query(
            marts=(q9,),
            sql="""SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
                    auction, bidder, price, bid_dateTime, bid_extra
                FROM (
                    SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
                        ROW_NUMBER() OVER (
                            PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC, B.bidder, B.extra
                        ) AS rownum
                    FROM {auction} A, {bid} B
                    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
                ) WHERE rownum <= 1""",
        ),
        "q11": Query(
            marts=(q11,),
            sql="""SELECT bidder, count(*) AS bid_count, session_window.start AS window_start,
                    session_window.end AS window_end
                FROM {bid} GROUP BY bidder, session_window(dateTime, '10 seconds')""",
        ),
        "q13": Query(
            marts=(q13,),
            sql="""SELECT B.auction, B.bidder, B.price, B.dateTime, S.value FROM {bid} B
                JOIN {side_input} AS S ON mod(B.auction, 10000) = S.key""",
        ),
        "q14": Query(
            marts=(q14,),
            sql="""SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
                    CASE WHEN HOUR(dateTime) >= 8 AND HOUR(dateTime) <= 18 THEN 'dayTime'
                        WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime'
                        ELSE 'otherTime' END AS bidTimeType,
                    dateTime, extra, CAST(regexp_count(extra, 'c') AS BIGINT) AS c_counts
                FROM {bid} WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
        ),
        "q20": Query(
            marts=(q20,),
            sql="""SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
                    itemName, description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller,
                    category, A.extra AS auction_extra
                FROM {bid} AS B INNER JOIN {auction} AS A ON B.auction = A.id WHERE A.category = 10""",
        ),
    }
)
