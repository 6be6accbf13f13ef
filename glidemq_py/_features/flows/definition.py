"""Definitions of flows: `FlowJob` for trees, `DagNode` for graphs, topological sorting. Nothing is sent here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Self, cast, overload

from typing_extensions import TypeVar

from glidemq_py._core.checks import Converted, OptionValue, check_iterable, name_within, option
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions, check_effect, unsupported_in
from glidemq_py._core.keys import validate_job_name, validate_queue_name
from glidemq_py._core.misuse import check_job_mapping, reject_field_of_job
from glidemq_py._core.queue_options import TaskCall, is_call, unchecked
from glidemq_py.errors import GlideMQValidationError

ResultT = TypeVar("ResultT", default=Any)
T = TypeVar("T")


def check_flow_options(options: JobOptions | Mapping[str, Any] | None) -> JobOptions:
    """Return the validated options of a job of a flow.

    Raises:
        GlideMQValidationError: the option cannot be used in a flow (`parent`, `deduplication`, `depends_on`).
        GlideMQValidationError: another option is invalid.
    """
    parsed = NO_OPTIONS if options is None else JobOptions.parse(options)
    parsed.check_place("flow", "is not supported for jobs of a flow")
    check_effect(parsed, parsed, of_flow=True)
    return parsed


def _name(option: str, value: str) -> str:
    return validate_job_name(value, option)


def _queue(option: str, value: str) -> str:
    return validate_queue_name(value, option)


def _options(_: str, value: Mapping[str, Any]) -> JobOptions:
    return check_flow_options(value)


class FlowMember(OptionValue):
    """A job of a flow: its name, its queue, its data, its options; see `FlowJob` and `DagNode`."""

    name: str = option(_name)
    queue: str = option(_queue)
    data: Any = option(unchecked, default=None)
    options: Converted[JobOptions, JobOptions | Mapping[str, Any] | None] = option(
        _options, default=NO_OPTIONS, optional=True
    )
    call: TaskCall | None = option(unchecked, default=None, kw_only=True)

    def __init__(self, *args: Any, **given: Any) -> None:
        if args and is_call(args[0]):
            call, *others = args
            fields = {"name": call.name, "queue": call.task.queue_names[0], "data": call.data, "options": call.options}
            if others or given.keys() & fields:
                raise TypeError(f"{type(self).__name__}() takes name, queue, data and options from the call of a task")
            args, given = (), {**given, **fields, "call": call}
        super().__init__(*args, **given)

    @property
    def key(self) -> str:
        """Name of the node."""
        return self.name

    def _reject(self, name: str, value: object) -> None:
        if name not in unsupported_in("flow"):
            reject_field_of_job(name, value, self._checks)
        super()._reject(name, value)

    @classmethod
    def _of_fields(cls, fields: Mapping[str, Any], where: str) -> Self:
        """Return a job with these fields. Errors name its place, such as ``flow.children[1].options.delay``."""
        place = f"{where}.options"
        try:
            checked: dict[str, Any] = {**fields, "options": check_flow_options(fields.get("options"))}
            place = where
            return cls(**checked)
        except GlideMQValidationError as error:
            name_within(error, where if error.option == "options" else place)
            raise


def member_fields(value: object, option: str, keys: Sequence[str]) -> Mapping[str, Any]:
    """Return the given mapping if it has only these keys, ``name`` and ``queue`` included.

    Raises:
        GlideMQValidationError: it is no mapping, has an unknown key, or lacks a required one.
    """
    given = check_job_mapping(option, value, keys, unsupported_in("flow"))
    for needed in ("name", "queue"):
        if needed not in given:
            raise GlideMQValidationError(f"{option}.{needed}", None, "is required")
    return given


MAX_DEPTH: Final = 10_000
_JOB_KEYS: Final = ("name", "queue", "data", "options", "children")


def too_deep(name: object) -> GlideMQValidationError:
    """Return the error for a job below the maximum depth."""
    return GlideMQValidationError("children", name, f"a flow must be at most {MAX_DEPTH} levels deep")


def _sequence(option: str, children: object) -> Sequence[object]:
    if isinstance(children, (str, Mapping)) or not isinstance(children, Sequence):
        raise GlideMQValidationError(option, cast("Any", children), "must be a sequence of jobs")
    return cast("Sequence[object]", children)


def _children(option: str, value: object) -> tuple[FlowJob, ...]:
    return tuple(FlowJob.parse(child, f"children[{i}]") for i, child in enumerate(_sequence(option, value)))


class FlowJob(FlowMember, Generic[ResultT]):
    """A job of a tree: it runs when its children have finished.

    ``FlowJob(report.call(5), children=[count.call("a"), count.call("b")])`` has name, queue, data and options of a call
    of a task (`Task.call`), whose children may be calls as well.

    Args:
        name: the job's name, or a call of a task, without the next three arguments.
        queue: name of its queue.
        data: anything the serializer takes.
        options: `JobOptions` or a mapping of keyword options; no `parent`, `deduplication` or `depends_on`.
        children: `FlowJob` objects, mappings of their fields, or calls of tasks.

    Raises:
        GlideMQValidationError: an option is invalid.
        TypeError: beside a call, one of its fields is given.
    """

    children: Converted[tuple[FlowJob, ...], Sequence[FlowJob | TaskCall | Mapping[str, Any]]] = option(
        _children, default=()
    )

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: FlowJob[T],
            call: TaskCall[T],
            /,
            *,
            children: Sequence[FlowJob | TaskCall | Mapping[str, Any]] = (),
        ) -> None: ...
        @overload
        def __init__(
            self: FlowJob,
            name: str,
            queue: str,
            data: Any = None,
            options: JobOptions | Mapping[str, Any] | None = None,
            children: Sequence[FlowJob | TaskCall | Mapping[str, Any]] = (),
        ) -> None: ...
        def __init__(self, *args: Any, **given: Any) -> None: ...

    def __repr__(self) -> str:
        return f"<FlowJob {self.name!r} of queue {self.queue!r}, children: {len(self.children)}>"

    @classmethod
    def parse(cls, value: object, option: str = "flow") -> FlowJob:
        """Return a `FlowJob` built from one, a call of a task, or a mapping of its fields, nested to any depth."""
        given: Any = value
        if isinstance(value, FlowJob):
            return cast("FlowJob", given)
        if is_call(value):
            return cls(value)
        frames = [_Frame(value, option)]
        while True:
            frame = frames[-1]
            for i, child in frame.rest:
                if isinstance(child, FlowJob) or is_call(child):
                    frame.children.append(cls.parse(cast("Any", child)))
                    continue
                if len(frames) > MAX_DEPTH:
                    raise too_deep(frame.fields["name"])
                try:
                    frames.append(_Frame(child, f"children[{i}]"))
                except GlideMQValidationError:
                    _Frame(child, f"{_place(frames)}.children[{i}]")  # raises again, with the whole place
                    raise
                break
            else:
                fields = {**frame.fields, "children": frame.children}
                try:
                    made = cls._of_fields(fields, frame.option)
                except GlideMQValidationError:
                    cls._of_fields(fields, _place(frames))  # raises again, with the whole place
                    raise
                frames.pop()
                if not frames:
                    return made
                frames[-1].children.append(made)


class _Frame:
    """A mapping whose children are being parsed: an explicit stack avoids the interpreter's recursion limit."""

    __slots__ = ("children", "fields", "option", "rest")

    def __init__(self, value: object, option: str) -> None:
        given = member_fields(value, option, _JOB_KEYS)
        children = _sequence(f"{option}.children", given.get("children", ()))
        self.option = option
        self.fields = {key: part for key, part in given.items() if key != "children"}
        self.rest: Iterator[tuple[int, object]] = enumerate(children)
        self.children: list[FlowJob] = []


def _place(frames: Sequence[_Frame]) -> str:
    return ".".join(frame.option for frame in frames)


MAX_DEPENDENTS: Final = 1_000
"""Maximum number of jobs that may wait for one job: the call that finishes it updates all of them."""
_NODE_KEYS: Final = ("name", "queue", "data", "options", "deps", "node")


def _dependencies(option: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise GlideMQValidationError(option, value, "must be a sequence of names")
    given = cast("Sequence[str | DagNode]", value)
    return tuple(dict.fromkeys(each.key if isinstance(each, DagNode) else each for each in given))


class DagNode(FlowMember):
    """A job of a graph: it runs when its dependencies have finished.

    Args:
        name: name of the job, or a call of a task (`Task.call`), without the next three arguments.
        queue: name of its queue.
        data: anything the serializer takes.
        options: `JobOptions` or a mapping of keyword options; no `parent`, `deduplication` or `depends_on`.
        deps: the nodes that must finish first, or their names.
        node: name of the node, unique in the graph; by default that of the job.

    Raises:
        GlideMQValidationError: an option is invalid.
        TypeError: beside a call, one of its fields is given.
    """

    deps: Converted[tuple[str, ...], Sequence[str | DagNode]] = option(_dependencies, default=())
    node: str | None = option(_name, default=None)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, call: TaskCall, /, *, deps: Sequence[str | DagNode] = (), node: str | None = None
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            queue: str,
            data: Any = None,
            options: JobOptions | Mapping[str, Any] | None = None,
            deps: Sequence[str | DagNode] = (),
            node: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **given: Any) -> None: ...

    @property
    def key(self) -> str:
        """Name of the node."""
        return self.node or self.name

    @classmethod
    def parse(cls, value: object, option: str = "nodes") -> DagNode:
        """Return a `DagNode` built from a `DagNode` or from a mapping of its fields."""
        if isinstance(value, DagNode):
            return value
        return cls._of_fields(member_fields(value, option, _NODE_KEYS), option)


def _parsed(nodes: Iterable[DagNode | Mapping[str, Any]]) -> list[DagNode]:
    return [DagNode.parse(node, f"nodes[{i}]") for i, node in enumerate(check_iterable("nodes", nodes, "nodes"))]


def validate_dag(nodes: Iterable[DagNode | Mapping[str, Any]]) -> list[DagNode]:
    """Return the validated nodes: names are unique, dependencies exist, there is no cycle.

    Raises:
        GlideMQValidationError: the dependencies form a cycle.
        GlideMQValidationError: a node, a name or a dependency is invalid.
    """
    parsed = _parsed(nodes)
    topo_sort(parsed)
    return parsed


def topo_sort(nodes: Iterable[DagNode | Mapping[str, Any]]) -> list[DagNode]:
    """Return the nodes sorted so that each comes after its dependencies (Kahn's algorithm).

    Keeps the given order as far as the dependencies allow.

    Raises:
        GlideMQValidationError: the dependencies form a cycle.
        GlideMQValidationError: a node, a name or a dependency is invalid.
    """
    parsed = _parsed(nodes)
    by_name: dict[str, DagNode] = {}
    for node in parsed:
        if by_name.setdefault(node.key, node) is not node:
            raise GlideMQValidationError("nodes", node.key, "is the name of two nodes; give one another by node=")
    dependents: dict[str, list[DagNode]] = {name: [] for name in by_name}
    for i, node in enumerate(parsed):
        for dep in node.deps:
            if dep not in by_name:
                problem = f"unknown node; node {node.key!r} depends on it"
                raise GlideMQValidationError(f"nodes[{i}].deps", dep, problem)
            dependents[dep].append(node)
    for name, waiting in dependents.items():
        if len(waiting) > MAX_DEPENDENTS:
            raise GlideMQValidationError("deps", name, f"more than {MAX_DEPENDENTS} nodes depend on it")
    left = {node.key: len(node.deps) for node in parsed}
    ready = deque(node for node in parsed if not node.deps)
    ordered: list[DagNode] = []
    while ready:
        node = ready.popleft()
        ordered.append(node)
        for dependent in dependents[node.key]:
            left[dependent.key] -= 1
            if not left[dependent.key]:
                ready.append(dependent)
    if len(ordered) < len(parsed):
        cycle = tuple(_cycle(by_name, {name for name, count in left.items() if count}))
        raise GlideMQValidationError("nodes", cycle, "must not depend on each other in a cycle")
    return ordered


def _cycle(by_name: Mapping[str, DagNode], stuck: set[str]) -> list[str]:
    """Return a cycle among nodes that each depend on another of them."""
    path: list[str] = []
    name = min(stuck)
    while name not in path:
        path.append(name)
        name = next(dep for dep in by_name[name].deps if dep in stuck)
    return [*path[path.index(name) :], name]
