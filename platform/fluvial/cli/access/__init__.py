"""Commands on who may do what: ACLs, and the users that sign in."""
