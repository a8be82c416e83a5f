"""`python -m fluvial`: the command line where its script is not on the PATH."""

from fluvial.cli.main import main

if __name__ == "__main__":
    main()
