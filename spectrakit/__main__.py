"""`python -m spectrakit` does what the command `spectrakit` does."""

import sys

import spectrakit

if __name__ == "__main__":
    if not hasattr(spectrakit, "__version__"):
        folder = next(iter(spectrakit.__path__))
        sys.exit(
            f"spectrakit: the folder {folder} hides the kit. "
            "Give it another name, or use the command spectrakit in place of python -m spectrakit."
        )

    from spectrakit.cli.main import main

    sys.exit(main())
