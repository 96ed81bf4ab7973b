"""`python -m spectrakit` does what the command `spectrakit` does."""
import sys

from spectrakit.cli.main import main

if __name__ == "__main__": sys.exit(main())
