"""`python -m warren.compat_tests URL [--management URL] [pytest arguments]`."""

import argparse

from warren.compat_tests.runner import run


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the AMQP conformance suite over a broker.")
    parser.add_argument("url", help="amqp://user:password@host:port/vhost")
    parser.add_argument("--management", help="http://user:password@host:port")
    options, pytest_args = parser.parse_known_args()
    return run(options.url, options.management, pytest_args)


if __name__ == "__main__":
    raise SystemExit(main())
