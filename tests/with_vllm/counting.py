"""Counts how often an engine calls each of our helpers."""

import collections
import functools

calls = collections.Counter()


def counted(name, ours):
    """`ours`, counting its calls; for a class, those of the methods that the engine's steps use."""
    if not isinstance(ours, type):

        @functools.wraps(ours)
        def counting(*arguments, **options):
            calls[name] += 1
            return ours(*arguments, **options)

        return counting

    def method(label):
        plain = getattr(ours, label)

        @functools.wraps(plain)
        def counting(self, *arguments):
            calls[f"{name}.{label}"] += 1
            return plain(self, *arguments)

        return counting

    watched = [label for label in ("__getitem__", "__len__", "copy_to_gpu") if hasattr(ours, label)]
    made = type(ours)(name, (ours,), {label: method(label) for label in watched})
    made.__doc__ = ours.__doc__
    return made


def count_calls():
    """Let the plugin serve counting forms of our helpers."""
    from fastutils import _select

    choose = _select.choose

    def choose_counted(name):
        choice = choose(name)
        # Details are made by the function that is counted; the managers have no part in this process.
        skipped = name == "IterationDetails" or name.endswith("ProcessManager")
        value = choice.value if skipped else counted(name, choice.value)
        return _select.Choice(name, choice.implementation, choice.reason, value)

    _select.choose = choose_counted
