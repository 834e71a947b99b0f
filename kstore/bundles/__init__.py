"""One key in one file, for stores that never meet: a CI job, an image layer, an air gap."""
