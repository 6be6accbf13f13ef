"""A serializer that encrypts; the Python processes of Spark import this module."""

from typing import Any

from cryptography.fernet import Fernet

from glidemq_py import JSON_SERIALIZER

_KEY = "nReLISqAqbQ34LZ7445baMUSky-Ugsi06_19DHXOi9Y="


class Encrypted:
    """Encrypts JSON. A program would read the key from its environment or a vault."""

    def __init__(self):
        self._fernet = Fernet(_KEY)

    def serialize(self, value: Any) -> str:
        return self._fernet.encrypt(JSON_SERIALIZER.serialize(value).encode()).decode()

    def deserialize(self, text: str) -> Any:
        return JSON_SERIALIZER.deserialize(self._fernet.decrypt(text).decode())


NOT_ONE = 5
