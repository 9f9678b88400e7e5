"""A validated config becomes a run folder."""
