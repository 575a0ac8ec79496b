"""The `fedssl` command: parse, call, print."""
