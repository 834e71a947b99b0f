"""The interfaces of other caches, backed by kstore: to switch, change the import."""
