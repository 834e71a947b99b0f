"""What a store says about a scope: refs, each of which publishes a generation, and the manifests that they name."""
