"""`python -m hanare` is the command `hanare`."""

from ._command import main

if __name__ == "__main__":
    main()
