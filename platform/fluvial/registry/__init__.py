"""
The Avro schema registry: Confluent's REST API, its state in the topic `_schemas`.

`avro_*` know Avro and nothing of a registry; `decide` turns a command into records by reading `state`, which only the
replay of records changes; `registry` puts the two around a log, `app` and `handlers` put HTTP around that. `validator`
answers the broker. `client` and `contracts` are the producers' side and work against any such registry.
"""
