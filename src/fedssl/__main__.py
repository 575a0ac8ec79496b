"""`python -m fedssl` is the `fedssl` command."""

from fedssl.cli.main import main

main()
