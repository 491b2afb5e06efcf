"""`python -m draftsmith`."""

from draftsmith.cli import main

if __name__ == "__main__":
    main()
