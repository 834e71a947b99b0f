"""What is done to a store. A package of its own, for `kstore.restore` and `kstore.commit` are functions."""
