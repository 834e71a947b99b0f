"""Why something was compiled although something was restored: fresh graphs, compared with those that were there."""
