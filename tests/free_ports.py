"""Free ports of this machine for processes that start later, or start again."""

from fluvial.free_ports import free_ports as first_of_free_ports


def free_port() -> int:
    """A port that nothing listens on."""
    return free_ports_in_a_row(1)


def free_ports(count: int) -> list[int]:
    """So many different ports that nothing listens on."""
    first = free_ports_in_a_row(count)
    return [*range(first, first + count)]


def free_ports_in_a_row(count: int) -> int:
    """The first of so many ports in a row that nothing listens on."""
    return first_of_free_ports("127.0.0.1", count)
