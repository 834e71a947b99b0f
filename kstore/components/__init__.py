"""What kstore knows about each JIT cache: a table, and the code that interprets it."""

from kstore.components.table import Component, Kind, Table, load_table, method_of

__all__ = ["Component", "Kind", "Table", "load_table", "method_of"]
