"""The form that composes settings in a notebook."""
