"""Commits while a compiler runs: what is finished is uploaded and published before the job ends."""
