"""AlterUserScramCredentials: refused user by user, since nobody signs in here."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: object, context: "RequestContext", request: Any) -> "Values":
    answers = {
        user.name: (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        for user in request.deletions
    }
    for user in request.upsertions:
        answers[user.name] = (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "This broker does not authenticate clients by SASL")
    return {
        "results": [
            {"user": name, "error_code": error, "error_message": message} for name, (error, message) in answers.items()
        ]
    }
