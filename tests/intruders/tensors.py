"""What the worlds of tensors share: their acts, and the gates that torch itself opens."""

import contextlib

import torch

from intruders.door import Token


def numbers(start, count=6):
    tensor = torch.arange(start, start + count)
    tensor.token = Token(f"of {start}")  # lives as long as the tensor, which a weak reference would keep from swaps
    return tensor


class Watched(torch.Tensor):
    """A tensor whose every use is told to a door."""

    door = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if Watched.door is not None:
            Watched.door()
        return super().__torch_function__(function, types, args, kwargs or {})


@contextlib.contextmanager
def use_of_a_subclass(world, door):
    world.watch(Watched)
    Watched.door = door
    try:
        yield
    finally:
        Watched.door = None


def give_other_memory(tensor):
    tensor.data = torch.full((8,), 77)


def swap(one, other):
    with contextlib.suppress(RuntimeError):  # torch refuses where others hold the memory
        torch.utils.swap_tensors(one, other)


def fill_what_was_freed():
    return [torch.full((6,), 55) for _ in range(20)]
