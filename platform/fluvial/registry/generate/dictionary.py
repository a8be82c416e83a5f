"""The data dictionary: a page of Markdown that says what every field of a contract means."""

from collections.abc import Iterable
from typing import Any

from fluvial.registry.contracts import Contract
from fluvial.registry.fields import FieldEntry, fields_of


def dictionary_page(contracts: Iterable[Contract]) -> str:
    """One chapter a contract: what it is, who answers for it, and its fields."""
    return "# Data dictionary\n\n" + "\n".join(_chapter(each) for each in contracts)


def _chapter(contract: Contract) -> str:
    about = contract.schema.get("doc")
    part = "keys" if contract.is_key else "values"
    facts = (
        f"The {part} of topic `{contract.topic}`, written by {_cell(contract.producer)} ({_cell(contract.contact)}). "
        f"Compatibility: {contract.compatibility}."
    )
    text = f"## {contract.subject}\n\n{f'{about}{chr(10)}{chr(10)}' if about else ''}{facts}\n"
    fields = fields_of(contract.schema)
    if not fields:
        return f"{text}\nEach is one `{contract.schema.get('type')}`.\n"
    return (
        f"{text}\n| field | type | may be null | default | meaning |\n| --- | --- | --- | --- | --- |\n{_rows(fields)}"
    )


def _rows(fields: Iterable[FieldEntry]) -> str:
    return "".join(
        f"| `{each.path}` | {_cell(each.type)} | {'yes' if each.nullable else 'no'} "
        f"| {'' if each.default is None else f'`{_cell(each.default)}`'} | {_meaning(each)} |\n"
        for each in fields
    )


def _meaning(field: FieldEntry) -> str:
    rules = ", ".join(f"{name.removeprefix('fluvial.')}: `{_cell(value)}`" for name, value in field.properties.items())
    return f"{_cell(field.doc)}{' ' if field.doc and rules else ''}{f'({rules})' if rules else ''}"


def _cell(value: Any) -> str:
    """Text that does not end a cell of a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")
