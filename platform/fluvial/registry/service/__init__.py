"""The HTTP side: requests, replies, pages of other origins, sign-in, forwarding to the node that writes."""
