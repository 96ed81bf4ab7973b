"""Time budget of a session, and the watchdog for any training loop."""
