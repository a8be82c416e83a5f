"""One module per api: reads the request, asks the node, answers."""
