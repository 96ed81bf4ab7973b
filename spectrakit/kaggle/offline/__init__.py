"""Installation without internet: package lists of platforms, wheelhouses, and the installing cell."""
