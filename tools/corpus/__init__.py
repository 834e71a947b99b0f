"""A corpus of about 10,000 real compiler artifacts, for tests and measurements."""
