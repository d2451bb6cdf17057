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


def told_name(text, door):
    """A str of a class of its own that opens the door when it is hashed or compared."""

    class Name(str):
        def __hash__(self):
            door()
            return str.__hash__(self)

        def __eq__(self, other):
            door()
            return str.__eq__(self, other)

    return Name(text)
