"""
The schema registry: Confluent's REST API, its state in the topic `_schemas`.

`avro` knows Avro and nothing of a registry; `schema_kind` says what a kind of schema has to know and `kinds` lists
them. `decide` turns a command into records by reading `state`, which only the replay of records changes; `registry`
puts the two around a log, `app` and `handlers` put HTTP around that. `validator` answers the broker. `client` and
`contracts` are the producers' side and work against any such registry.
"""
