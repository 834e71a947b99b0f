"""Whether what was restored was used: what hit, what missed, and what was compiled anew."""

from kstore.hits.evidence import unknowable, usage_of
from kstore.hits.report import Usage, UsageReport

__all__ = ["Usage", "UsageReport", "unknowable", "usage_of"]
