"""Keys of dictionaries."""

from intruders.door import Token


class Key:
    """Hashes like the name it stands before in a dictionary, which has to compare it with that name."""

    def __init__(self, name, door):
        self.name, self.door = name, door

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        self.door()
        return False


class Named(Token):
    """A key that is equal to those of its name."""

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Named) and self.name == other.name
