"""A running cluster from outside: how it stands, where its replicas should be, and moving them there."""
