"""Intruders: code that runs in the middle of a call and changes what the call works on.

Three axes, each a table: *acts* (what happens), *gates* (how it gets in) and *entries* (the calls). `matrix` runs all
combinations over both forms; `python -m intruders BLOCK` runs a block of them in a process of its own.
"""
