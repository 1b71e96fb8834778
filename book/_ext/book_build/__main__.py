"""``python -m book_build pdf`` (or ``zip``) makes an edition of the built pages."""

from .editions import main

if __name__ == "__main__":
    main()
