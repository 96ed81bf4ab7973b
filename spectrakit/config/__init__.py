"""The settings of a run: what they may be, how profiles and overrides are put together, and what `auto` becomes.

Others use `schema.Config`, `compose.compose` and `compose.override`, `profile_files.profiles`, `resolve.resolve_env`.
"""
