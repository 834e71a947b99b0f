"""The node-local side: the cache root, what is in it, and how artifacts get there."""
