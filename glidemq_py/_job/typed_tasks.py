"""Convert between the arguments of a function and the data of a job, such as ``{"to": "a@b.c", "times": 2}``.

Annotations are resolved on first use, so they may refer to names that are defined later.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.checks import signature_of
from glidemq_py._core.payload import Mismatch
from glidemq_py._job.job import Job
from glidemq_py._job.stored import STEP_KEY
from glidemq_py.errors import GlideMQValidationError, JobDataError, SerializationError

_REFUSED: Final = {
    inspect.Parameter.VAR_POSITIONAL: "must not take *args: job data is passed by keyword",
    inspect.Parameter.VAR_KEYWORD: "must not take **kwargs: every key of the job data needs a parameter",
    inspect.Parameter.POSITIONAL_ONLY: "must not take positional-only parameters: job data is passed by keyword",
}


class Resolved:
    """Parameters with resolved annotations.

    Args:
        name: name of the task, for errors.
        signature: signature of the function, without the job.
        takes_job: the first parameter of the function is the job.
        hints: annotations by parameter; "return" is that of the result.
    """

    __slots__ = (
        "_codecs", "_name", "_names", "_positional", "_required", "_signature", "has_step", "result", "takes_job",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        takes_job: bool,
        hints: Mapping[str, Any],
    ) -> None:
        from glidemq_py._features.typed_values import Codec  # imports msgspec, which few programs need

        parameters = signature.parameters.values()
        keyword_only, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        self._name = name
        self._signature = signature
        self._names = frozenset(signature.parameters)
        self._positional = [each.name for each in parameters if each.kind is not keyword_only]
        self._required = frozenset(each.name for each in parameters if each.default is empty)
        self._codecs = {each: Codec(hints.get(each, Any)) for each in signature.parameters}
        self.has_step = STEP_KEY in self._names
        self.takes_job = takes_job
        self.result = Codec(hints.get("return", Any))

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the job data for the arguments of a call.

        Raises:
            TypeError: an argument is missing, unknown or given twice, as in a Python call.
        """
        data = dict(zip(self._positional, args, strict=False))
        fits = len(data) == len(args) and kwargs.keys() <= self._names and data.keys().isdisjoint(kwargs)
        if kwargs:
            data.update(kwargs)
        if not (fits and self._required <= data.keys()):
            self._raise_type_error(args, kwargs)
        codecs = self._codecs
        for name, value in data.items():
            if codecs[name].special:
                data[name] = codecs[name].write(value)
        return data

    def _raise_type_error(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self._name!r}: {error}") from None

    @staticmethod
    def read_own_keys(text: str | None) -> Collection[object]:
        """Return the names that earlier runs of a task have added to the data; none if the text is malformed."""
        try:
            names: object = json.loads(text) if text else ()
        except SerializationError:
            return ()
        return cast("list[object]", names) if isinstance(names, list) else ()

    def read(self, data: Any, own: Collection[object] = ()) -> dict[str, Any]:
        """Return the arguments for the data of a job. ``own``: names in it that an earlier run of the task has added.

        Raises:
            JobDataError: the data does not match the parameters; names the parameter and its value.
        """
        given: Any = {} if data is None else data
        if not isinstance(given, Mapping):
            raise JobDataError(Mismatch(data, "must be an object, one key per parameter").describe(self._place("data")))
        arguments: dict[str, Any] = {}
        name = ""
        try:
            for name, value in cast("Mapping[str, Any]", given).items():
                if name in own:
                    continue
                codec = self._codecs.get(name)
                if codec is None:
                    if name == STEP_KEY and isinstance(value, str):
                        continue  # `job.step` is not an argument
                    raise Mismatch(value, "unknown parameter")
                arguments[name] = codec.convert(value)
        except Mismatch as mismatch:
            raise JobDataError(mismatch.describe(self._place(name))) from mismatch
        if not self._required <= arguments.keys():
            missing = ", ".join(repr(each) for each in self._positional_first(self._required - arguments.keys()))
            raise JobDataError(f"task {self._name!r}: missing arguments in the job data: {missing}")
        return arguments

    def own_keys(self, given: Collection[str], own: Collection[object], data: Any) -> str | bool:
        """Return the names in new data that are no arguments, a JSON array; False if there are none.

        Args:
            given: the arguments of this run.
            own: names that earlier runs have added.
            data: the new data.

        Raises:
            GlideMQValidationError: one of the names is a parameter.
        """
        after = cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else ()
        names = [name for name in after if name not in given and name != STEP_KEY]
        for name in names:
            if name in self._names and name not in own:
                raise GlideMQValidationError(
                    "data", name, f"is a parameter of task {self._name!r}, which the job lacks; rename the key"
                )
        return json.dumps(names) if names or own else False

    def check_step(self, next_step: str) -> None:
        """Check that a step matches the task's own parameter ``step``.

        Raises:
            GlideMQValidationError: it does not match.
        """
        try:
            self._codecs[STEP_KEY].convert(next_step)
        except Mismatch as mismatch:
            raise GlideMQValidationError(
                "next_step", next_step,
                f"does not match parameter 'step' of task {self._name!r}: {mismatch.problem}; rename the parameter",
            ) from mismatch  # fmt: skip

    def _positional_first(self, names: frozenset[str]) -> list[str]:
        return [each for each in self._signature.parameters if each in names]

    def _place(self, name: str) -> str:
        return f"task {self._name!r}: {name}"

    def read_result(self, value: Any) -> Any:
        """Return the typed result of the function from the stored value.

        Raises:
            SerializationError: the value does not match the return annotation.
        """
        try:
            return self.result.convert(value)
        except Mismatch as mismatch:
            raise SerializationError(f"result of task {self._name}", value, mismatch.problem) from mismatch


class Parameters:
    """The parameters of a task.

    Args:
        function: function of the task.
        name: name of the task.
        namespace: local names of the scope that defines the function.

    Raises:
        GlideMQValidationError: a parameter cannot be passed by keyword.
    """

    def __init__(self, function: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None) -> None:
        self._function = function
        self._name = name
        self._namespace = namespace
        self._signature = signature_of(function)
        for index, parameter in enumerate(self._signature.parameters.values()):
            may_be_job = index == 0 and parameter.kind is inspect.Parameter.POSITIONAL_ONLY
            if parameter.kind in _REFUSED and not may_be_job:
                raise GlideMQValidationError("task", name, _REFUSED[parameter.kind])

    @functools.cached_property
    def resolved(self) -> Resolved:
        """The parameters with resolved annotations.

        Raises:
            GlideMQValidationError: an annotation is not supported, or refers to a name that is not defined at run time.
        """
        try:
            return self._resolve()
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            hint = " (names must be defined at run time, not only for the type checker)"
            problem = f"its annotations cannot be used: {error}{hint if isinstance(error, NameError) else ''}"
            raise GlideMQValidationError("task", self._name, problem) from error

    def _resolve(self) -> Resolved:
        target: Any = self._function
        while isinstance(target, functools.partial):
            target = cast("Any", target).func
        if not inspect.isroutine(target):
            target = type(target).__call__
        hints = typing.get_type_hints(target, localns=None if self._namespace is None else dict(self._namespace))
        parameters = list(self._signature.parameters.values())
        takes_job = bool(parameters) and _is_job(parameters[0], hints)
        if takes_job:
            del parameters[0]
        elif parameters and parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise GlideMQValidationError("task", self._name, _REFUSED[inspect.Parameter.POSITIONAL_ONLY])
        signature = self._signature.replace(parameters=parameters)
        return Resolved(self._name, signature, takes_job, hints)


def _is_job(first: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    """Return True if the first parameter is annotated as `Job`, or has no annotation and is named ``job``."""
    if first.kind is inspect.Parameter.KEYWORD_ONLY:
        return False
    if first.name not in hints:
        return first.name == "job"
    annotation = hints[first.name]
    return (typing.get_origin(annotation) or annotation) is Job
