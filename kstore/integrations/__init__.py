"""The interfaces of other caches, on kstore: to change over, change the import."""
