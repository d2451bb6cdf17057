"""The objects of one call."""

import importlib

from fastutils import _select


def form_of(name, form):
    """The object `name` in the form "compiled" or "python"."""
    home = _select.HOMES[name][form == "compiled"]
    return getattr(importlib.import_module(home), name)


class World:
    """Its attributes are what the call and the intruder reach; `state` tells what has become of them."""

    def state(self):
        return {}

    def watched(self):
        """(name, object) for what the references are counted of: what nobody shares with other worlds."""
        return ()

    def lasting(self):
        """(name, object) for what must be gone when the world is."""
        return ()

    def drop(self):
        """Let go of everything, as the last outside references go."""
        vars(self).clear()

    def get(self, name):
        return vars(self).get(name)

    def end(self):
        vars(self).clear()
