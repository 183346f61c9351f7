"""``python -m divulge.cli``: the same as ``divulge``."""

from divulge.cli import main

main()
