"""Looks at everything between a store and a hit: each check says what it found, and what to do."""

from kstore.doctor.check import Check, Verdict
from kstore.doctor.examination import examine

__all__ = ["Check", "Verdict", "examine"]
