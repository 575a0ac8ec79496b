"""A federation across machines: a server, a client at each site, certificates and keys; Flower carries the messages."""
