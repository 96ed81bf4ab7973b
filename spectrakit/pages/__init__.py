"""Pages that open offline: run reports, comparisons, cross-validations, prediction plots."""
