"""`functools.cached_property` as it is since Python 3.12: without a lock.

Before, all objects of a class share one lock for each property, which is held while the value is found out
(python/cpython#87634). A child that is forked meanwhile, as beside a live commit that reads a manifest, would wait for
the lock for ever.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """Threads that ask at once each find out the value, and all get what the first one has found."""

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            """The value, found out when it is first asked for."""
            return self if instance is None else vars(instance).setdefault(self.attrname, self.func(instance))
