"""Entry point of `python -m plumbline`."""

import sys

from plumbline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
