"""One training under six launchers, each run as a whole program and measured.

The programs are in `programs`. They differ only in what their launcher needs.
"""
