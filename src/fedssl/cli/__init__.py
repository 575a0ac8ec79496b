"""The `fedssl` command: parse, call, print."""

from fedssl.cli.main import app as app
from fedssl.cli.main import main as main
