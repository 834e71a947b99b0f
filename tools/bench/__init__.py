"""Measures kstore against what people use instead."""
