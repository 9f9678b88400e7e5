"""Experiments: from a validated config to a run folder, comparisons of runs, and the tables of the papers."""
