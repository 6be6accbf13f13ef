"""pydantic: validated models as data and results of jobs, for handlers that take a `Job`."""

from __future__ import annotations

from typing import Any

try:
    from pydantic import PydanticUserError, TypeAdapter
except ImportError as error:
    raise ImportError("glidemq_py.integrations.pydantic requires pydantic: pip install pydantic") from error

from glidemq_py.errors import GlideMQValidationError

__all__ = ["PydanticSerializer"]


class PydanticSerializer:
    """Serialize models as plain JSON, which producers in any language can write; validate all that is read.

    Data and results of a queue go through the same serializer. If they are of several types, give their union::

        class Resize(BaseModel):
            kind: Literal["resize"] = "resize"
            width: PositiveInt


        class Resized(BaseModel):
            kind: Literal["resized"] = "resized"
            size: int


        models = PydanticSerializer(Resize | Resized)
        queue = Queue("images", serializer=models)
        worker = Worker("images", resize, serializer=models)

    An add of an invalid value raises `SerializationError` and sends nothing. A job whose stored data is invalid fails
    without a retry, with pydantic's message. Typed tasks (`Worker.task`) do not need this class: they validate the
    models of their annotations.

    Args:
        kind: A model, or any type that `pydantic.TypeAdapter` accepts, such as a union of models.

    Raises:
        GlideMQValidationError: pydantic cannot handle the type.
    """

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        except PydanticUserError as error:
            raise GlideMQValidationError("kind", kind, f"pydantic cannot handle it: {error}") from error

    def serialize(self, value: Any, /) -> str:
        """Validate a value and return its JSON text, with the fields' aliases and without computed fields."""
        checked = self._adapter.validate_python(value)
        return self._adapter.dump_json(checked, by_alias=True, round_trip=True).decode()

    def deserialize(self, text: str, /) -> Any:
        """Return the validated value of a JSON text."""
        return self._adapter.validate_json(text)
