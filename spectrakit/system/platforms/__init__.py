"""Where we run: one module per platform, each a `PlatformKind` (`base`), registered by a line in `kinds`.

Others use `detect.detect`, which returns a `platform.Platform`, `detect.writable_bytes`, `detect.input_folders`
and `kinds.kind_of`.
"""
