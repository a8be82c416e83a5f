import pytest

from log_broker.core.security.certificates import PrincipalRules, distinguished_name

# As `ssl` gives it: the order of the certificate, which begins with the country.
SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Ex, Inc."),),
    (("organizationalUnitName", "a"), ("organizationalUnitName", "b")),
    (("commonName", "Service-1"),),
)
NAME = "CN=Service-1,OU=a+OU=b,O=Ex\\, Inc.,C=DE"


def test_a_name_begins_with_its_last_part():
    assert distinguished_name(SUBJECT) == NAME


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("commonName", "#x", "CN=\\#x"),
        ("commonName", " x ", "CN=\\ x\\ "),
        ("commonName", 'a"b\\c;d<e>f+g', 'CN=a\\"b\\\\c\\;d\\<e\\>f\\+g'),
        ("userId", "u", "UID=u"),
        ("emailAddress", "a@b", "1.2.840.113549.1.9.1=#1603614062"),
    ],
)
def test_what_has_a_meaning_in_a_name_is_escaped(name, value, written):
    assert distinguished_name((((name, value),),)) == written


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "Service-1"),
        ("RULE:^CN=(.*?),.*$/$1/L", "service-1"),
        ("RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "SERVICE-1"),
        ("RULE:^UID=(.*)$/$1/,RULE:^CN=(.*?),.*C=(..)$/$1@$2/L,DEFAULT", "service-1@de"),
        ("RULE:^CN=(.*?),.*$/\\$1 a\\/b/", "$1 a/b"),
        ("RULE:CN=/x/", None),
    ],
)
def test_the_first_rule_that_fits_counts(rules, principal):
    assert PrincipalRules.parse(rules).apply(NAME) == principal


@pytest.mark.parametrize("text", ["RULE:a", "RULE:(/b/", "default", "RULE:a/b/X", "RULE:a/$1/", "DEFAULT DEFAULT"])
def test_rules_that_are_none_are_told(text):
    with pytest.raises(ValueError, match=r"rule|pattern|group"):
        PrincipalRules.parse(text)
