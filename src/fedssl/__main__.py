"""`python -m fedssl` is the `fedssl` command."""

from fedssl.cli import main

main()
