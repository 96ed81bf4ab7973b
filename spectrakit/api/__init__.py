"""What people call: `actions.fit`, `actions.resume` and `actions.predict` return a `run.Run`, which `run.open_run` opens later."""
