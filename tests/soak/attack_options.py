"""The command line of the soaks that run one attack after the other."""

import argparse
import sys


def parse(program, text, honest, seconds, slice_help, arguments):
    """`honest`: what the bounds are about; `seconds`: of each attack unless said."""
    parser = argparse.ArgumentParser(prog=program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each attack")
    parser.add_argument("--attack", nargs="*", metavar="NAME", help="these attacks only")
    parser.add_argument("--list", action="store_true", help="print the names of all attacks")
    parser.add_argument("--slice", action="store_true", help=slice_help)
    parser.add_argument("--bound-median", type=float, help=f"highest allowed growth of the {honest}'s median")
    parser.add_argument("--bound-p99", type=float, help="highest allowed growth of its 99th percentile")
    return parser.parse_args(arguments)


def choose(options, known, default):
    """The names of the attacks to run. Prints all with --list; ends the program for an unknown one."""
    if options.list:
        print("\n".join(known))
        return []
    if unknown := set(options.attack or ()) - set(known):
        print(f"unknown attacks: {', '.join(sorted(unknown))}; --list shows all", file=sys.stderr)
        sys.exit(2)
    return options.attack or default
