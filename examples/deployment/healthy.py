"""Whether the fedssl of this container does its work: a server listens, a client has its node. Exit code 0 if so."""

import sys

import psutil

PARTS = ("fedssl.deployment.superlink", "fedssl.deployment.supernode")


def main() -> int:
    running = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return 0 if any(part in command for part in PARTS for command in running) else 1


if __name__ == "__main__":
    sys.exit(main())
