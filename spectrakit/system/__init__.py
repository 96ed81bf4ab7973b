"""The machine and the words that everybody shares, below everything else.

Others use `errors.RequestError`, `files.write_atomic`, `platforms.detect.detect`, `secrets.secret`,
`inputs.find_input` and `units`.
"""
