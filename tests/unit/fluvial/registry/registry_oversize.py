"""Schemas that are as large as may be."""


def at_most(characters: int) -> str:
    """A record of so many fields that its text has nearly so many characters, escapes in a request included."""
    fields = []
    size = 100
    while True:
        field = f'{{"name":"field_{len(fields)}","type":"int"}}'
        size += len(field) + field.count('"') + 1
        if size > characters:
            return '{"type":"record","name":"Large","fields":[' + ",".join(fields) + "]}"
        fields.append(field)
