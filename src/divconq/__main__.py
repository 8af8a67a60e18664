"""Run the command line with ``python -m divconq``."""

from divconq.cli import main

if __name__ == "__main__":
    main()
