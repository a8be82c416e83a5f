"""
Who is taken for a node of the cluster: whose requests of the metadata quorum and of replicas are answered.

Without any security that is everybody. With it, who comes by a listener of the nodes: the one that brokers reach each
other by, or the controllers' own. Where that listener asks who somebody is, it must be the user by which all nodes sign
in, or a super user. With an authorizer the right to CLUSTER_ACTION is asked for instead of the name.
"""

from collections.abc import Iterable

from log_broker.core.security.listeners import ListenersConfig
from log_broker.core.security.principal import ANONYMOUS, Principal


class NodePrincipals:
    """What a node's settings say of the principals of all nodes."""

    def __init__(self, config: ListenersConfig, super_users: Iterable[str] = ()) -> None:
        """`super_users` are written as ACLs write principals."""
        self.is_open = not config.is_secured
        for_nodes = [config.own] if config.controller is None else [config.own, config.controller]
        self._asks = {each.name: each.knows_callers for each in for_nodes}
        self._names = {str(Principal(each.name)) for each in (config.account, config.controller_account) if each}
        self._names |= set(super_users)

    def come_by(self, listener: str) -> bool:
        """Whether nodes come by a listener."""
        return self.is_open or listener in self._asks

    def include(self, listener: str, principal: Principal) -> bool:
        """
        Whether a principal that came by a listener is that of nodes.

        Certificates of which no name is among the super users are all of nodes: the listener's authority says so.
        """
        if self.is_open:
            return True
        asks = self._asks.get(listener)
        if not asks:
            return asks is not None  # what reaches a plain listener of the nodes is a node
        return self.may_be(principal)

    def may_be(self, principal: Principal) -> bool:
        """Whether somebody who is known may be a node, as far as that is said of names."""
        return principal != ANONYMOUS and (not self._names or str(principal) in self._names)
