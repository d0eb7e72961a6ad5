"""``python -m kvweave`` is the command line."""

from kvweave.cli import main

if __name__ == "__main__":
    main()
