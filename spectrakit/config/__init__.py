"""Settings: schema, composition from YAML and overrides, aliases, explanations. Imports no torch."""
