"""The `Task` protocol: methods, loss, given data, sampler, modules held by a task, source identity."""
