"""`python -m services.cli` is `gemstream`: how roles are started as child processes."""

from services.cli.main import main

if __name__ == "__main__":
    main()
