"""
The services of a .proto text.
"""

from google.protobuf import descriptor_pb2 as pb

from fluvial.registry.formats.protobuf.option_source import OptionReader
from fluvial.registry.formats.protobuf.tokens import Tokens


def read_service(tokens: Tokens, options: OptionReader, found: pb.ServiceDescriptorProto) -> None:
    """Read a service with its methods, from its keyword on. Raises `SchemaSyntaxError`."""
    tokens.take()
    found.name = tokens.word("the service's name")
    tokens.expect("{")
    while not tokens.skip("}"):
        if tokens.at("option"):
            options.statement(found.options)
        elif not tokens.skip(";"):
            _read_method(tokens, options, found.method.add())


def _read_method(tokens: Tokens, options: OptionReader, found: pb.MethodDescriptorProto) -> None:
    tokens.expect("rpc")
    found.name = tokens.word("the method's name")
    for side in ("input_type", "output_type"):
        tokens.expect("(")
        if tokens.at("stream") and tokens.after_next.text != ")":
            tokens.take()
            setattr(found, "client_streaming" if side == "input_type" else "server_streaming", True)
        setattr(found, side, tokens.name("a message"))
        tokens.expect(")")
        if side == "input_type":
            tokens.expect("returns")
    if tokens.skip(";"):
        return
    tokens.expect("{")
    while not tokens.skip("}"):
        if not tokens.skip(";"):
            options.statement(found.options)
    tokens.skip(";")
