"""The blocks by name; a block's module is imported, and with it perhaps torch, only where the block runs."""

import importlib

#: Block -> (module, the fewest combinations that it must come to: its tables cannot shrink unnoticed).
BLOCKS = {
    "view in its slot": ("views", 6000),
    "view with its own dictionary": ("views", 6000),
    "view of a view": ("views", 5000),
    "view in a subclass": ("views", 7000),
    "step: in its order": ("steps", 1500),
    "step: another order": ("steps", 1500),
    "step: nothing new": ("steps", 1500),
    "step: map already made": ("steps", 1500),
    "step: new ones as a tuple": ("steps", 1500),
    "step: ids of any kind": ("steps", 1500),
    "step: classes of others": ("steps", 1500),
    "scopes, off": ("scopes", 450),
    "scopes, first use": ("scopes", 650),
    "copies": ("copies", 1500),
    "buffers as they are": ("buffers", 5500),
    "buffers in a subclass": ("buffers", 8500),
    "data": ("data", 1000),
    "staging": ("staging", 600),
}


def find(name):
    module = importlib.import_module(f"intruders.{BLOCKS[name][0]}")
    return {block.name: block for block in module.BLOCKS}[name]
