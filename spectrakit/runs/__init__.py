"""Run folders: events, history, resume, session outputs. `trackers` sends numbers to other services."""
