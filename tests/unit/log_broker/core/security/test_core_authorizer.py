import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.core.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from log_broker.core.security.authorizer import REMEMBERED_MAX, Authorizer, Rights
from log_broker.core.security.principal import Principal
from log_broker.errors import BrokerError, ErrorCode

ADA, BOB = Principal("ada"), Principal("bob")
HERE = "10.0.0.1"
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC = ResourceType.TOPIC


def acl(
    name: str = "orders",
    operation: Operation = READ,
    *,
    who: str = "User:ada",
    host: str = "*",
    deny: bool = False,
    prefixed: bool = False,
    resource: ResourceType = TOPIC,
) -> Acl:
    return Acl(
        resource=resource,
        name=name,
        pattern=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal=who,
        host=host,
        operation=operation,
        permission=Permission.DENY if deny else Permission.ALLOW,
    )


def deciding(*acls: Acl, **settings: bool) -> Authorizer:
    authorizer = Authorizer(["User:root"], everyone_if_no_acl=settings.get("everyone", False))
    authorizer.follow(acls)
    return authorizer


def may(
    authorizer: Authorizer, operation: Operation = READ, name: str = "orders", who: Principal = ADA, host: str = HERE
) -> bool:
    return authorizer.allows(who, host, operation, TOPIC, name)


def test_only_a_super_user_may_do_anything_before_the_acls_are_known() -> None:
    authorizer = Authorizer(["User:root"], everyone_if_no_acl=True)
    assert may(authorizer, who=Principal("root"))
    assert not may(authorizer)
    authorizer.follow([])
    assert may(authorizer)


def test_without_an_acl_nobody_but_a_super_user_may_unless_everyone_may() -> None:
    assert not may(deciding())
    assert may(deciding(), who=Principal("root"))
    assert may(deciding(everyone=True))
    assert not may(deciding(acl(who="User:bob"), everyone=True))
    assert may(deciding(acl(who="User:bob"), everyone=True), name="payments")


@pytest.mark.parametrize("name", ["orders", "*"])
def test_a_literal_acl_is_about_its_name_and_the_star_about_all(name: str) -> None:
    authorizer = deciding(acl(name))
    assert may(authorizer)
    assert may(authorizer, name="orders2") == (name == "*")
    assert not may(authorizer, WRITE)
    assert not may(authorizer, who=BOB)


def test_a_prefixed_star_is_a_prefix_of_names_that_begin_with_a_star() -> None:
    assert not may(deciding(acl("*", prefixed=True)))


def test_a_prefix_is_about_all_names_that_begin_with_it() -> None:
    authorizer = deciding(acl("ord", prefixed=True))
    assert may(authorizer)
    assert may(authorizer, name="ord")
    assert not may(authorizer, name="or")


@pytest.mark.parametrize("denial", [acl("ord", prefixed=True, deny=True), acl("*", who="User:*", deny=True)])
def test_a_denial_wins_over_every_permission(denial: Acl) -> None:
    authorizer = deciding(acl(), acl("*"), denial)
    assert not may(authorizer)
    assert may(deciding(acl(), acl("*")))


def test_an_acl_of_a_host_counts_for_that_host() -> None:
    assert may(deciding(acl(host=HERE)))
    assert not may(deciding(acl(host="10.0.0.2")))
    assert may(deciding(acl(), acl(host="10.0.0.2", deny=True)))


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL])
def test_what_allows_describing(operation: Operation) -> None:
    assert may(deciding(acl(operation=operation)), DESCRIBE)
    # A denial of another operation denies nothing but that.
    assert may(deciding(acl(operation=DESCRIBE), acl(operation=READ, deny=True)), DESCRIBE)


def test_what_allows_describing_settings() -> None:
    assert may(deciding(acl(operation=Operation.ALTER_CONFIGS)), Operation.DESCRIBE_CONFIGS)
    assert not may(deciding(acl(operation=Operation.ALTER)), Operation.DESCRIBE_CONFIGS)
    assert not may(deciding(acl(operation=Operation.ALTER_CONFIGS)), DESCRIBE)


def test_a_change_of_acls_is_heeded_at_once() -> None:
    authorizer = deciding(acl())
    assert may(authorizer)
    authorizer.follow([])
    assert not may(authorizer)
    authorizer.follow([acl()])
    assert may(authorizer)


def test_what_is_remembered_is_bounded() -> None:
    authorizer = deciding(acl("t", prefixed=True))
    for number in range(REMEMBERED_MAX + 10):
        may(authorizer, name=f"t{number}")
    assert len(authorizer._remembered) <= REMEMBERED_MAX
    may(authorizer, name="t" * 10_000)
    assert max(len(key[-1]) for key in authorizer._remembered) < 10_000


def test_the_bits_of_what_is_allowed() -> None:
    rights = Rights(deciding(acl(operation=WRITE)), ADA, HERE)
    assert rights.operations(TOPIC, "orders") == 1 << WRITE | 1 << DESCRIBE
    root = Rights(deciding(), Principal("root"), HERE)
    assert root.operations(TOPIC, "orders") == sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
    assert root.operations(ResourceType.CLUSTER, CLUSTER_NAME) == sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
    assert root.operations(ResourceType.GROUP, "g") == sum(1 << code for code in (3, 6, 8, 10, 11))


class TestSome:
    """Whether anything of a type may be done, which lets a producer get an id."""

    @pytest.mark.parametrize(
        ("acls", "expected"),
        [
            ([], False),
            ([acl(operation=WRITE)], True),
            ([acl(operation=READ)], False),
            ([acl(operation=Operation.ALL)], True),
            ([acl("o", WRITE, prefixed=True)], True),
            ([acl("*", WRITE)], True),
            ([acl(operation=WRITE), acl(operation=WRITE, deny=True)], False),
            ([acl(operation=WRITE), acl("or", WRITE, prefixed=True, deny=True)], False),
            ([acl(operation=WRITE), acl("orders", WRITE, prefixed=True, deny=True)], False),
            ([acl("or", WRITE, prefixed=True), acl("ord", WRITE, prefixed=True, deny=True)], True),
            ([acl("or", WRITE, prefixed=True), acl("or", WRITE, deny=True)], True),
            ([acl("*", WRITE), acl("or", WRITE, prefixed=True, deny=True)], True),
            ([acl(operation=WRITE), acl("*", WRITE, deny=True, who="User:*")], False),
        ],
    )
    def test_some(self, acls: list[Acl], expected: bool) -> None:
        assert deciding(*acls).allows_some(ADA, HERE, WRITE, TOPIC) is expected

    def test_a_super_user_and_everyone(self) -> None:
        assert deciding().allows_some(Principal("root"), HERE, WRITE, TOPIC)
        assert deciding(everyone=True).allows_some(ADA, HERE, WRITE, TOPIC)


NAMES = st.sampled_from(["*", "a", "ab", "abc", "abd", "b", ""])
ACLS = st.builds(
    acl,
    NAMES.filter(bool),
    st.sampled_from(Operation).filter(lambda each: each is not Operation.ANY),
    who=st.sampled_from(["User:ada", "User:bob", "User:*", "Group:ada"]),
    host=st.sampled_from(["*", HERE, "10.0.0.2"]),
    deny=st.booleans(),
    prefixed=st.booleans(),
    resource=st.sampled_from([TOPIC, ResourceType.GROUP]),
)


@given(
    st.lists(ACLS, max_size=12),
    st.sampled_from(Operation).filter(lambda each: each > Operation.ALL),
    NAMES,
    st.sampled_from([ADA, BOB, Principal("ada", "Group"), Principal("root")]),
    st.booleans(),
)
def test_it_decides_as_a_walk_over_all_acls_does(
    acls: list[Acl], operation: Operation, name: str, who: Principal, everyone: bool
) -> None:
    authorizer = deciding(*acls, everyone=everyone)
    expected = _by_walking(acls, operation, name, who, everyone=everyone)
    assert may(authorizer, operation, name, who) is expected
    assert may(authorizer, operation, name, who) is expected, "the same when it is remembered"


def _by_walking(acls: list[Acl], operation: Operation, name: str, who: Principal, *, everyone: bool) -> bool:
    """The rules in the order in which Kafka's documentation tells them."""
    if str(who) == "User:root":
        return True
    about = [
        each
        for each in acls
        if each.resource is TOPIC
        and (
            (each.pattern is PatternType.LITERAL and each.name in {name, "*"})
            or (each.pattern is PatternType.PREFIXED and name.startswith(each.name))
        )
    ]
    if not about:
        return everyone
    mine = [each for each in about if each.principal in {str(who), "User:*"} and each.host in {"*", HERE}]
    implied = {
        DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(operation, set())
    exact = {operation, Operation.ALL}
    if any(each.permission is Permission.DENY and each.operation in exact for each in mine):
        return False
    return any(each.permission is Permission.ALLOW and each.operation in exact | implied for each in mine)


@pytest.mark.parametrize(
    ("given_filter", "matched"),
    [
        (AclFilter(), True),
        (AclFilter(resource=TOPIC, name="orders", pattern=PatternType.LITERAL), True),
        (AclFilter(name="orders"), True),
        (AclFilter(name="ord"), False),
        (AclFilter(name="orders", pattern=PatternType.PREFIXED), False),
        (AclFilter(name="orders", pattern=PatternType.MATCH), True),
        (AclFilter(principal="User:bob"), False),
        (AclFilter(principal="User:ada", host="*", operation=READ, permission=Permission.ALLOW), True),
        (AclFilter(operation=WRITE), False),
        (AclFilter(permission=Permission.DENY), False),
        (AclFilter(host=HERE), False),
        (AclFilter(resource=ResourceType.GROUP), False),
    ],
)
def test_filters(given_filter: AclFilter, matched: bool) -> None:
    assert given_filter.matches(acl()) is matched


def test_a_filter_of_matches_finds_prefixes_and_the_star() -> None:
    matching = AclFilter(name="orders", pattern=PatternType.MATCH)
    assert matching.matches(acl("ord", prefixed=True))
    assert matching.matches(acl("*"))
    assert not matching.matches(acl("orders2", prefixed=True))
    assert not matching.matches(acl("order"))


@pytest.mark.parametrize(
    "bad",
    [
        acl(resource=ResourceType.ANY),
        acl(""),
        acl(operation=Operation.ANY),
        acl(who="ada"),
        acl("clusters", resource=ResourceType.CLUSTER),
    ],
)
def test_what_no_acl_can_say(bad: Acl) -> None:
    with pytest.raises(BrokerError) as refused:
        bad.check()
    assert refused.value.code is ErrorCode.INVALID_REQUEST
