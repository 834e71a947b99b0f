"""Tools for those who work on kstore: the corpus of real artifacts, and the benchmark."""
