import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from itertools import count
from pathlib import Path

import pytest

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.access_changes import (
    Deletion,
    Upsertion,
    alter_credentials,
    create_acls,
    delete_acls,
    derived,
)
from log_broker.core.cluster.features import METADATA_VERSION, USERS_FROM
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import FeatureLevelSet, MetadataRecord, decode_all, encode_all
from log_broker.core.cluster.snapshot import decode_image, encode_image
from log_broker.core.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from log_broker.core.security.credentials import ScramMechanism
from log_broker.errors import BrokerError, ErrorCode

CONFIG = BrokerConfig(data_dir=Path("nowhere"))


@pytest.fixture
def image() -> ClusterImage:
    image = ClusterImage(defaults=CONFIG)
    image.replay(FeatureLevelSet(feature=METADATA_VERSION, level=USERS_FROM))
    return image


def acl(name: str = "orders", operation: Operation = Operation.READ, principal: str = "User:ada") -> Acl:
    return Acl(
        resource=ResourceType.TOPIC,
        name=name,
        pattern=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


IDS = (f"{number:032x}" for number in count(1))


def make(image: ClusterImage, *wanted: Acl | BrokerError) -> list[ErrorCode]:
    records, answers = create_acls(image, wanted, lambda: next(IDS))
    replay(image, records)
    return [code for code, _ in answers]


def replay(image: ClusterImage, records: "list[MetadataRecord] | list[object]") -> None:
    if records:
        for record in decode_all(encode_all(records)):  # type: ignore[arg-type]
            image.replay(record)


def upsert(name: str = "ada", mechanism: int = 1, iterations: int = 4096, password: bytes = b"p" * 32) -> Upsertion:
    return Upsertion(name, mechanism, iterations, b"salt", password)


def alter(image: ClusterImage, *wishes: Deletion | Upsertion) -> dict[str, ErrorCode]:
    deletions = [wish for wish in wishes if isinstance(wish, Deletion)]
    upsertions = [wish for wish in wishes if isinstance(wish, Upsertion)]
    records, answers = alter_credentials(image, deletions, upsertions)
    replay(image, records)  # type: ignore[arg-type]
    return {name: code for name, (code, _) in answers.items()}


def test_an_acl_is_kept_once_and_what_is_none_is_refused(image: ClusterImage) -> None:
    broken = BrokerError(ErrorCode.INVALID_REQUEST, "no such operation")
    assert make(image, acl(), acl(), acl(""), broken) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert make(image, acl()) == [ErrorCode.NONE]
    assert list(image.access.acls.values()) == [acl()]


def test_a_filter_is_answered_with_all_that_it_matches(image: ClusterImage) -> None:
    make(image, acl(), acl("payments"), acl(operation=Operation.WRITE))
    records, answers = delete_acls(
        image,
        [AclFilter(name="orders"), AclFilter(operation=Operation.READ), BrokerError(ErrorCode.INVALID_REQUEST, "odd")],
    )
    replay(image, records)  # type: ignore[arg-type]
    assert [set(answer.acls) for answer in answers] == [
        {acl(), acl(operation=Operation.WRITE)},
        {acl(), acl("payments")},
        set(),
    ]
    assert answers[2].refusal == (ErrorCode.INVALID_REQUEST, "odd")
    assert image.access.acls == {}


def test_a_draft_and_its_image_do_not_change_each_other(image: ClusterImage) -> None:
    make(image, acl())
    draft = image.draft()
    make(draft, acl("payments"))
    alter(draft, upsert())
    assert list(image.access.acls.values()) == [acl()]
    assert image.access.scram == {}
    make(image, acl("refunds"))
    assert list(draft.access.acls.values()) == [acl(), acl("payments")]


def test_many_acls_are_not_copied_for_each_of_them(image: ClusterImage) -> None:
    image.draft()
    make(image, acl("first"))
    before = image.access
    make(image, *(acl(f"t{number}") for number in range(100)))
    assert image.access is before


def test_what_is_kept_of_a_password(image: ClusterImage) -> None:
    assert alter(image, upsert(), upsert("bob", 2, 8192)) == {"ada": ErrorCode.NONE, "bob": ErrorCode.NONE}
    assert alter(image, upsert(mechanism=2, iterations=16_384)) == {"ada": ErrorCode.NONE}
    assert set(image.access.scram["ada"]) == set(ScramMechanism)
    kept = image.access.scram["bob"][ScramMechanism.SHA_512]
    assert kept.iterations == 8192
    assert len(kept.stored_key) == len(kept.server_key) == 64
    assert alter(image, Deletion("ada", 1), Deletion("bob", 2)) == {"ada": ErrorCode.NONE, "bob": ErrorCode.NONE}
    assert {name: set(kept) for name, kept in image.access.scram.items()} == {"ada": {ScramMechanism.SHA_512}}


def test_the_keys_accept_the_proof_in_rfc_7677_and_answer_as_it_does() -> None:
    """Section 3 of the RFC: user `user`, password `pencil`."""
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    kept = derived(ScramMechanism.SHA_256, salt=salt, salted_password=salted, iterations=4096)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    signature = hmac.digest(kept.stored_key, message, "sha256")
    proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert hashlib.sha256(bytes(a ^ b for a, b in zip(proof, signature, strict=True))).digest() == kept.stored_key
    answer = b64encode(hmac.digest(kept.server_key, message, "sha256"))
    assert answer == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("wishes", "code"),
    [
        ([upsert(), upsert(mechanism=2)], ErrorCode.DUPLICATE_RESOURCE),
        ([Deletion("ada", 1), upsert()], ErrorCode.DUPLICATE_RESOURCE),
        ([upsert(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert(iterations=16_385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsert(password=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert(name="")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert(name="a" * 256)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([Deletion("ada", 1)], ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_refused(image: ClusterImage, wishes: list[Deletion | Upsertion], code: ErrorCode) -> None:
    assert set(alter(image, *wishes).values()) == {code}
    assert image.access.scram == {}


def test_nothing_is_kept_below_the_level_that_knows_of_it() -> None:
    image = ClusterImage(defaults=CONFIG)
    image.replay(FeatureLevelSet(feature=METADATA_VERSION, level=USERS_FROM - 1))
    with pytest.raises(BrokerError, match=f"from metadata.version {USERS_FROM} on") as refused:
        create_acls(image, [acl()], lambda: next(IDS))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(BrokerError):
        alter_credentials(image, [], [upsert()])


def test_a_snapshot_has_acls_and_users_and_is_as_before_without_any(image: ClusterImage) -> None:
    assert "access" not in json.loads(encode_image(image))
    make(image, acl(), acl("payments"))
    alter(image, upsert(), upsert("bob", 2))
    delete_acls(image, [AclFilter(name="payments")])
    again = decode_image(encode_image(image), CONFIG)
    assert again == image
    assert again.access == image.access


def test_no_key_is_shown(image: ClusterImage) -> None:
    records, _ = alter_credentials(image, [], [upsert()])
    replay(image, records)  # type: ignore[arg-type]
    kept = image.access.scram["ada"][ScramMechanism.SHA_256]
    for shown in (repr(records[0]), str(records[0])):
        assert kept.stored_key.hex() not in shown
        assert kept.server_key.hex() not in shown
