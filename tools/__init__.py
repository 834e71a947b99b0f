"""Tools for working on kstore: the corpus of real artifacts, and the benchmark."""
