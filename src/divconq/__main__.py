"""``python -m divconq`` is ``divconq``."""

from divconq.cli import main

if __name__ == "__main__":
    main()
