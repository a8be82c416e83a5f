"""DescribeUserScramCredentials: which users can sign in by which mechanisms; of no password or key is told anything."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.access_image import MECHANISM_NUMBERS
from log_broker.errors import ErrorCode
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: Cluster, context: "RequestContext", request: Any) -> "Values":
    asked = Counter(user.name for user in request.users or ()) or dict.fromkeys(sorted(node.cluster.access.scram), 1)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "results": [_user(node, name) if count == 1 else _repeated(name) for name, count in asked.items()],
    }


def _user(node: Cluster, name: str) -> "Values":
    credentials = node.cluster.access.scram.get(name)
    if credentials is None:
        return {
            "user": name,
            "error_code": ErrorCode.RESOURCE_NOT_FOUND,
            "error_message": f"Attempt to describe a user credential that does not exist: {name}",
            "credential_infos": (),
        }
    return {
        "user": name,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "credential_infos": [
            {"mechanism": MECHANISM_NUMBERS[mechanism], "iterations": credential.iterations}
            for mechanism, credential in credentials.items()
        ],
    }


def _repeated(name: str) -> "Values":
    return {
        "user": name,
        "error_code": ErrorCode.DUPLICATE_RESOURCE,
        "error_message": f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        "credential_infos": (),
    }
